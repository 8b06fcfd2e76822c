"""What formats of the KV cache cost and gain: `python benchmarks/kv_formats.py CHECKPOINT --text FILE --work DIR [--scheme FP32] [--json]`.

Compiles the checkpoint once, and gives that plan other formats of keys and values, so that all else is the same to the bit. Formats are
written as for `--kv-dtype` (`i8`, `i4,0=i8`), and with `+scores` for int8 scores as well. Then, for each: mean KL divergence from the
original and perplexity, as `mixplan eval --against` has them, and the time of a decode step at each context. Plans are timed in turn, and a
format's figure is the median of its ratios to the first one's in the same turn. DIR keeps the plans, and the original's log-probabilities.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter

import msgspec
import numpy as np
from numpy.typing import NDArray

import mixplan
from mixplan.compiler.attention import KV_FORMATS, AttentionRules, head_formats, parse_rules
from mixplan.compiler.evaluation.reference import replay_reference
from mixplan.compiler.frontends import open_checkpoint
from mixplan.compiler.kernels import build_regions, write_regions
from mixplan.compiler.units import Units
from mixplan.runtime import load
from mixplan.runtime.evaluation.evaluate import EvalOptions, load_for_windows, plan_windows
from mixplan.runtime.evaluation.measure import measure
from mixplan.runtime.kv_format import KvFormat
from mixplan.runtime.logit_rows import finite_best
from mixplan.runtime.plan import AttentionLayer
from mixplan.runtime.plan_io import read_plan, write_manifest

FORMATS = ("f16", "i8", "i8+scores", "k8v4", "i4", "i4+scores")
_STEPS = 12  # decode steps of a turn


@dataclass
class Row:
    """Figures of one format. speed: times as fast as the first format, by context; ms: a step's median."""

    kv: str
    bytes_per_token: int
    kld: float = 0.0
    kld_p99: float = 0.0
    perplexity: float = 0.0
    same_top: float = 0.0
    ms: dict[int, float] = field(default_factory=dict)
    speed: dict[int, float] = field(default_factory=dict)


def _variant(base: Path, output: Path, name: str) -> Path:
    """The plan `base` with another format."""
    text, _, scores = name.partition("+")
    everywhere, exceptions = parse_rules("--formats", text, KV_FORMATS, heads=True)
    rules = AttentionRules(everywhere or "f16", exceptions)
    plan = read_plan(base, verify="manifest").plan
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir()
    for path in base.iterdir():
        if path.is_file() and not path.name.startswith("plan."):
            os.link(path, output / path.name)
    known = {path: entry for path, entry in plan.files.items() if "/" not in path}
    kinds = {"scores": "i8"} if scores else {}
    plan = msgspec.structs.replace(
        plan,
        attention=tuple(_layer(layer, head_formats(rules, number, layer.kv_heads)) for number, layer in enumerate(plan.attention)),
        nodes=tuple(msgspec.structs.replace(n, attrs={**n.attrs, **kinds}) if n.op == "attention" else n for n in plan.nodes),
        regions=tuple(msgspec.structs.replace(region, kernels={}, source="") for region in plan.regions),
        files={},
    )
    plan = msgspec.structs.replace(plan, regions=write_regions(output, build_regions(plan, Units(levels=("native",)))))
    write_manifest(output, plan, known=known)
    return output


def _layer(layer: AttentionLayer, formats: tuple[KvFormat, ...]) -> AttentionLayer:
    return msgspec.structs.replace(layer, dtype=formats[0], heads=formats if len(set(formats)) > 1 else ())


class _Kept:
    """The original's log-probabilities, f32, in a file."""

    def __init__(self, checkpoint: str, windows: NDArray[np.int64], vocab_size: int, path: Path) -> None:
        self.vocab_size = vocab_size
        if not path.exists():
            part = path.with_suffix(".part")
            shape = (*windows.shape, vocab_size)
            held = np.lib.format.open_memmap(part, mode="w+", dtype=np.float32, shape=shape)
            opened = open_checkpoint(checkpoint)
            with replay_reference(opened.capture(), windows, keep=False) as reference:
                for index in range(len(windows)):
                    held[index] = reference.window(index)
            opened.close()
            held.flush()
            part.rename(path)
        self._held = np.load(path, mmap_mode="r")

    def window(self, index: int) -> NDArray[np.float32]:
        """Log-probabilities [L, V] of a window."""
        return np.asarray(self._held[index])


def _quality(row: Row, plan: Path, options: argparse.Namespace) -> None:
    with load_for_windows(plan, EvalOptions(windows=options.windows)) as model:
        windows = plan_windows(model, options.text, EvalOptions(windows=options.windows))
        reference = _Kept(options.checkpoint, windows, model.plan.model.vocab_size, options.work / "original.npy")
        found = measure(model, windows, reference)
    row.kld, row.kld_p99, row.perplexity, row.same_top = found.kld_mean, found.kld_p99, found.perplexity, found.same_top


def _speed(rows: list[Row], plans: list[Path], options: argparse.Namespace) -> None:
    most = max(options.context)
    models = [load(plan, trust=True, max_sequences=1, kv_tokens=most + 2 * _STEPS) for plan in plans]
    ids = np.random.default_rng(0).integers(0, models[0].plan.model.vocab_size, most)
    done = 0
    for context in sorted(options.context):
        for model in models:
            model.prefill(ids[done:context], 0)
        done = context
        times: list[list[float]] = [[] for _ in models]
        for turn in range(options.turns + 1):
            for model, found in zip(models, times, strict=True):
                token, seconds = [5], []
                for _ in range(_STEPS):
                    start = perf_counter()
                    token = list(model.decode(token, [0], finite_best))
                    seconds.append(perf_counter() - start)
                model.truncate(0, context)
                if turn:  # the first one warms up
                    found.append(statistics.median(seconds))
        for row, found in zip(rows, times, strict=True):
            row.ms[context] = statistics.median(found) * 1e3
            row.speed[context] = statistics.median(first / own for first, own in zip(times[0], found, strict=True))
    for model in models:
        model.close()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("--text", type=Path, help="measure quality on this text")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--scheme", default="FP32")
    parser.add_argument("--formats", nargs="*", default=list(FORMATS))
    parser.add_argument("--context", nargs="*", type=int, default=[], help="contexts to time decode steps at")
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.work.mkdir(exist_ok=True)
    base = options.work / f"{options.scheme}.plan"
    if not base.exists():
        mixplan.compile(options.checkpoint, output=base, scheme=options.scheme, isa=("native",))
    rows, plans = [], []
    for name in options.formats:
        output = options.work / f"{options.scheme}-{name}.plan"
        plans.append(output if output.exists() else _variant(base, output, name))
        rows.append(Row(name, sum(layer.token_bytes for layer in read_plan(output, verify="manifest").plan.attention)))
        if options.text is not None:
            _quality(rows[-1], output, options)
    if options.context:
        _speed(rows, plans, options)
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return
    for row in rows:
        speed = " ".join(f"{context}: {row.ms[context]:.3f} ms {row.speed[context]:.2f}x" for context in sorted(row.ms))
        quality = f"kld {row.kld:.6f} p99 {row.kld_p99:.5f} perplexity {row.perplexity:.3f} same top {row.same_top:.4f}"
        print(f"{row.kv:10} {row.bytes_per_token:7} B  {quality}  {speed}")


if __name__ == "__main__":
    main()
