"""Checks and times the GPU target on the GPU that is here, in under 8 minutes on one H200: `python -m benchmarks.gpu_check [--json FILE]`.

1. check: `tests/gpu` on the GPU: every kernel against its reference, and whole plans by the driver and by torch.
2. products: gemm kernels of a 4096 x 14336 weight for 1 to 2048 rows, beside torch's bf16 product, with the share of the memory bandwidth
   and of the tensor peak (both measured here first, by a copy and by a large bf16 product).
3. model: a random decoder of 1.2 billion weights as W4A16, W8A8 and BF16 plans: decode with batches of 1 to 64 at a context of 512, and the
   prefill of 512 tokens, beside torch's bf16 eager and torch.compile of the same model. W4A16 is compiled again with tiles tuned here.
4. tiles: what each tile of that model takes, the table's and the tuned one.

What part 2 measures first is kept as this GPU's ceilings, which costs are then read from. `--smoke` runs parts 2 to 4 tiny, in Triton's
interpreter, so that the script itself is tested without a GPU; its times mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.gpu_tiles import keep_ceilings, smoke_tiles, tiles

ROWS = (1, 4, 16, 64, 512, 2048)
BATCHES = (1, 4, 16, 64)
SCHEMES = ("W4A16", "W8A8", "BF16")


@dataclass(frozen=True)
class Size:
    """What is multiplied and which model is run."""

    weight: tuple[int, int]
    rows: tuple[int, ...]
    batches: tuple[int, ...]
    context: int
    config: dict[str, int]


FULL = Size(
    (4096, 14336),
    ROWS,
    BATCHES,
    512,
    {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 32000,
        "max_position_embeddings": 4096,
    },
)
SMOKE = Size(
    (64, 128),
    (1, 20),
    (1, 2),
    8,
    {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 256,
        "max_position_embeddings": 256,
    },
)


def seconds(run: Callable[[], Any], synchronize: Callable[[], None], least: float = 0.2) -> float:
    """The median time of one call, of as many as `least` seconds hold, three at least."""
    run()
    synchronize()
    started, times = perf_counter(), []
    while len(times) < 3 or (perf_counter() - started < least and len(times) < 1000):
        before = perf_counter()
        run()
        synchronize()
        times.append(perf_counter() - before)
    return float(np.median(times))


def check() -> dict[str, Any]:
    """tests/gpu on the GPU."""
    started = perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", "tests/gpu"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
        check=False,
    )
    return {"passed": done.returncode == 0, "seconds": perf_counter() - started, "told": done.stdout.splitlines()[-12:]}


def peaks(torch: Any, device: str, synchronize: Callable[[], None], smoke: bool) -> dict[str, float]:
    """bytes/s of a copy (read and written bytes both count) and operations/s of a bf16 product, both of torch."""
    count, side = (1 << 10, 64) if smoke else (1 << 30, 8192)
    a, b = (torch.empty(count, dtype=torch.uint8, device=device) for _ in range(2))
    bandwidth = 2 * count / seconds(lambda: b.copy_(a), synchronize)
    x = torch.randn(side, side, device=device, dtype=torch.float32 if smoke else torch.bfloat16)
    return {"bytes_per_second": bandwidth, "operations_per_second": 2 * side**3 / seconds(lambda: x @ x, synchronize)}


def products(
    torch: Any, device: str, synchronize: Callable[[], None], size: Size, top: dict[str, float], smoke: bool
) -> list[dict[str, Any]]:
    """One row for each kernel and number of rows."""
    from mixplan.runtime.devices.gpu_driver import find_driver
    from mixplan.runtime.formats import WeightFormat
    from mixplan.runtime.packing import Quantized, pack
    from mixplan.targets.gpu.arch import ARCHS, JIT
    from mixplan.targets.gpu.kernels.gemm_a8 import gemm_a8
    from mixplan.targets.gpu.kernels.gemm_a16 import gemm_a16
    from mixplan.targets.gpu.kernels.gemm_fp8 import gemm_fp8
    from mixplan.targets.gpu.tiles import SIZES, gemm_tile

    driver, _ = find_driver()
    arch = ARCHS[driver.arch if driver and driver.arch else JIT]
    n, k = size.weight
    rng = np.random.default_rng(0)
    dense = torch.randn(n, k, device=device, dtype=torch.float32 if smoke else torch.bfloat16)
    out = []

    def tensor(array: np.ndarray) -> Any:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    for rows in size.rows:
        name = next(name for name, least, most in SIZES if least <= rows <= most)
        x = torch.randn(rows, k, device=device)
        y = torch.empty(rows, n, device=device)
        half = x.to(dense.dtype)
        taken = seconds(lambda half=half: half @ dense.T, synchronize)
        out.append(_row("torch bf16", rows, n, k, 16.0, taken, top))
        for title, bits, group in (("W4A16", 4, 32 if smoke else 128), ("W8A16", 8, 0), ("W8A8", 8, 0), ("FP8", 8, 0)):
            kind = {"W8A8": "a8", "FP8": "fp8"}.get(title, "a16")
            tile = gemm_tile(arch, name, kind, n, k, group)
            fmt = WeightFormat.of(f"i{bits}", group)
            codes = rng.integers(0, 1 << bits if kind != "fp8" else 0x78, (n, k)).astype(np.uint8)
            packed = pack(fmt, Quantized(codes, (rng.random((n, fmt.groups(k))) / 100 + 1e-3).astype(np.float32)))
            words, scales = tensor(packed["weight"].view(np.int32).reshape(-1)), tensor(packed["scales"])
            # The tile's rows and columns without its split: the split's second launch belongs to the plan's own measurement below.
            grid = (-(-rows // tile.m), -(-n // tile.n), 1)
            common = {"N": n, "KP": k, "BLOCKS": n // 16, "RESIDUAL_STRIDE": 0, "GATE": "", "QUANT": 0, "SPLIT": 1}
            common |= {"BLOCK_M": tile.m, "BLOCK_N": tile.n, "BLOCK_K": tile.k}
            if not smoke:
                common |= {"num_warps": tile.warps, "num_stages": tile.stages}
            options = {"BITS": bits, "NONUNIFORM": False, "GROUP": group, "TWO_LEVEL": False, "MINIMUM": False}
            q = torch.randint(0, 100, (rows, k), device=device, dtype=torch.int8)
            ones = torch.ones(rows, 1, device=device)
            run: Callable[[], Any]
            if kind == "a16":
                more = options | {"K": k, "X_STRIDE": k, "DOT": "bf16i" if smoke else "bf16"}
                given = (x, words, scales, None, None, None, None, y, None, None, rows)
                run = partial(gemm_a16[grid], *given, **common, **more)
            elif kind == "a8":
                given = (q, ones, ones, words, scales, None, None, None, None, y, None, None, rows)
                run = partial(gemm_a8[grid], *given, **common, **options)
            else:
                given = (q.view(torch.uint8), ones, words, scales, None, None, y, None, None, rows)
                more = {"NATIVE": arch.fp8, "GROUP": 0}
                run = partial(gemm_fp8[grid], *given, **common, **more)
            out.append(_row(title, rows, n, k, fmt.effective_bits(n, k), seconds(run, synchronize), top))
    return out


def _row(title: str, rows: int, n: int, k: int, bits: float, taken: float, top: dict[str, float]) -> dict[str, Any]:
    read = n * k * bits / 8 + 4 * rows * (n + k)
    return {
        "kernel": title,
        "rows": rows,
        "microseconds": taken * 1e6,
        "share_of_bandwidth": read / taken / top["bytes_per_second"],
        "share_of_tensor_peak": 2 * rows * n * k / taken / top["operations_per_second"],
    }


def model(torch: Any, device: str, synchronize: Callable[[], None], size: Size, smoke: bool) -> list[dict[str, Any]]:
    """One row for each way to run the model, phase and batch."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from mixplan.compiler.pipeline import compile as compile_plan
    from mixplan.runtime import load

    torch.manual_seed(0)
    module = LlamaForCausalLM(LlamaConfig(**size.config)).eval()
    out = []
    with tempfile.TemporaryDirectory() as folder:
        ways = [(scheme, False) for scheme in SCHEMES] + [(SCHEMES[0], True)]
        for scheme, tune in ways[:1] if smoke else ways:
            title = f"{scheme} tuned" if tune else scheme
            plan = Path(folder) / f"{title}.plan"
            options = {"targets": ("gpu",), "isa": _levels(smoke), "max_step_tokens": max(size.context, 64)}
            started = perf_counter()
            compile_plan(module, output=plan, scheme=scheme, tune=tune and _levels(smoke) != ("jit",), **options)
            compiled = perf_counter() - started
            loaded = load(
                plan,
                device="gpu",
                isa="interpret" if smoke else None,
                max_sequences=max(size.batches),
                kv_tokens=max(size.batches) * (size.context + 64),
            )
            with loaded as running:
                out += [row | {"compile_seconds": compiled} for row in _plan_times(running, title, size)]
            if smoke:
                smoke_tiles(plan)
    if not smoke:
        out += _torch_times(torch, module.to(device, torch.bfloat16), device, synchronize, size)
    return out


def _levels(smoke: bool) -> tuple[str, ...]:
    from mixplan.runtime.devices.gpu_driver import find_driver

    driver, _ = find_driver()
    return (driver.arch,) if driver and driver.arch and not smoke else ("jit",)


def _plan_times(running: Any, scheme: str, size: Size) -> list[dict[str, Any]]:
    prompt = np.arange(size.context) % size.config["vocab_size"]
    out, at = [], [size.context] * max(size.batches)

    def fill(sequence: int) -> None:
        running.step(prompt, np.arange(size.context), [sequence] * size.context)

    taken = seconds(lambda: fill(0), lambda: None)
    out.append({"way": f"plan {scheme}", "phase": "prefill", "batch": 1, "tokens_per_second": size.context / taken})
    for sequence in range(1, max(size.batches)):
        fill(sequence)
    for batch in size.batches:

        def decode(batch: int = batch) -> None:
            running.step([1] * batch, at[:batch], list(range(batch)))
            for i in range(batch):
                at[i] = size.context + (at[i] + 1 - size.context) % 32

        out.append({"way": f"plan {scheme}", "phase": "decode", "batch": batch, "tokens_per_second": batch / seconds(decode, lambda: None)})
    return out


def _torch_times(torch: Any, module: Any, device: str, synchronize: Callable[[], None], size: Size) -> list[dict[str, Any]]:
    """The same model in torch: a forward over the prompt, and one of a token over a static cache, eager and compiled."""
    from transformers import StaticCache

    out = []
    for way in ("torch bf16 eager", "torch.compile"):
        forward = module if way == "torch bf16 eager" else torch.compile(module, mode="reduce-overhead")
        with torch.inference_mode():
            prompt = torch.zeros(1, size.context, dtype=torch.long, device=device)
            taken = seconds(lambda prompt=prompt, forward=forward: forward(prompt, use_cache=False, logits_to_keep=1), synchronize)
            out.append({"way": way, "phase": "prefill", "batch": 1, "tokens_per_second": size.context / taken})
            for batch in size.batches:
                cache = StaticCache(config=module.config, max_cache_len=size.context + 64)
                module(torch.zeros(batch, size.context, dtype=torch.long, device=device), past_key_values=cache, logits_to_keep=1)
                token = torch.zeros(batch, 1, dtype=torch.long, device=device)
                position = torch.tensor([size.context], device=device)

                def decode(token: Any = token, cache: Any = cache, position: Any = position, forward: Any = forward) -> None:
                    forward(token, past_key_values=cache, cache_position=position)

                out.append({"way": way, "phase": "decode", "batch": batch, "tokens_per_second": batch / seconds(decode, synchronize)})
    return out


def show(report: dict[str, Any]) -> None:
    """The report as text."""
    print(f"{report['device']}: {report['seconds']:.0f} s")
    if "check" in report:
        print("tests/gpu", "passed" if report["check"]["passed"] else "FAILED", *report["check"]["told"], sep="\n  ")
    print({name: f"{value:.3g}" for name, value in report["peaks"].items()})
    for row in report["products"]:
        shares = f"{row['share_of_bandwidth']:8.1%} of bandwidth {row['share_of_tensor_peak']:8.1%} of tensor peak"
        print(f"{row['kernel']:12}{row['rows']:6} rows {row['microseconds']:10.1f} us {shares}")
    for row in report["tiles"]:
        gain = f"{row['table_microseconds'] / row['microseconds']:6.2f} times the table's tile"
        print(f"{row['tile for']:50}{row['tile']:50}{row['microseconds']:10.1f} us {gain}")
    for row in report["model"]:
        print(f"{row['way']:20}{row['phase']:10}batch {row['batch']:3} {row['tokens_per_second']:12.1f} tokens/s")


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the report here too")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes in Triton's interpreter, to test this script")
    parser.add_argument("--no-check", action="store_true", help="leave tests/gpu out")
    options = parser.parse_args()
    if options.smoke:
        os.environ["TRITON_INTERPRET"] = "1"
    import torch

    if not options.smoke and not torch.cuda.is_available():
        print("There is no GPU that torch sees. --smoke tests the script without one.", file=sys.stderr)
        return 2
    device = "cpu" if options.smoke else "cuda"
    synchronize: Callable[[], None] = (lambda: None) if options.smoke else torch.cuda.synchronize
    size, started = SMOKE if options.smoke else FULL, perf_counter()
    report: dict[str, Any] = {"device": "the interpreter" if options.smoke else torch.cuda.get_device_name()}
    if not options.smoke and not options.no_check:
        report["check"] = check()
    report["peaks"] = peaks(torch, device, synchronize, options.smoke)
    if not options.smoke:
        keep_ceilings(report["peaks"])
    report["products"] = products(torch, device, synchronize, size, report["peaks"], options.smoke)
    report["model"] = model(torch, device, synchronize, size, options.smoke)
    report["tiles"] = [] if options.smoke else tiles()
    report["seconds"] = perf_counter() - started
    show(report)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if report.get("check", {"passed": True})["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
