"""One cold start: a script that runs in a process of its own, `python -P launch.py PLAN DEVICE THREADS TRUST ISA STRICT TOKENS`.

The prompt's token ids come on standard input. Imports nothing of the benchmark, so that what is measured is what any program that serves a
plan does. Prints numbers: the monotonic clock when the interpreter had started, when mixplan was imported, when the plan was loaded and
when the first token was there; the peak resident set by then, and after TOKENS of them; the size of the weights.
"""

from time import perf_counter

_STARTED = perf_counter()


def _main() -> None:
    import sys

    from mixplan import runtime

    imported = perf_counter()
    plan, device, threads, trust, isa, strict, tokens = sys.argv[1:]
    prompt = [int(token) for token in sys.stdin.read().split()]
    cores = int(threads) if threads else None
    model = runtime.load(plan, device=device, threads=cores, trust=trust == "trust", isa=isa or None, strict=strict == "strict")
    loaded = perf_counter()
    chunks = runtime.generate_batch(model, [prompt], text=False, temperature=0.0, max_tokens=int(tokens), ignore_eos=True)
    next(chunks)
    first = perf_counter()
    first_rss = model.metrics().peak_rss_bytes
    for _ in chunks:
        pass
    metrics = model.metrics()
    model.close()
    numbers = (_STARTED, imported, loaded, first, first_rss, metrics.peak_rss_bytes, metrics.weight_bytes)
    sys.stdout.write(" ".join(map(repr, numbers)) + "\n")


if __name__ == "__main__":
    _main()
