"""How a decode step scales with context, batch, threads and model size, beside the least time that bytes and operations allow.

    python -m benchmarks.scaling PLAN [MORE_PLANS ...] [--contexts 128 8192] [--batches 1 64] [--threads 1 2] [--json FILE]
    python -m benchmarks.scaling --draw FILE --svg OUT.svg        the plot and the tables of a saved run, without measuring

The first plan is measured over contexts, batches and threads; the others, for the model size, at one context and batch 1. The limit is the
roofline over `mixplan.runtime.cost` with the ceilings of the same process: read rate at the step's own working set, peaks of the units.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mixplan.runtime import load
from mixplan.runtime.cost import Limits, Work, limit_seconds, plan_cost
from mixplan.targets.cpu.ceilings import Ceilings, measure

__all__ = ["Point", "main", "tables"]

_CONTEXTS = (128, 256, 512, 1024, 2048, 4096, 8192)
_BATCHES = (1, 2, 4, 8, 16, 32, 64)
_BASE_CONTEXT = 128
_MB = 1e6


@dataclass(frozen=True)
class Point:
    """One measured step. axis: what varies. seconds: the median; limit: what the roofline allows at least; read: bytes from memory."""

    axis: str
    plan: str
    context: int
    batch: int
    threads: int
    seconds: float
    limit: float
    read: float
    read_limit: float


class _Machine:
    """The ceilings of this process: the read rate is measured at each working set that is asked for."""

    def __init__(self) -> None:
        self._peaks: dict[int, Ceilings] = {}
        self._reads: dict[tuple[int, int], float] = {}

    def bandwidth(self, size: float, threads: int) -> float:
        """Bytes/s at a working set of `size` bytes, rounded up to a power of two's quarter so that few sizes are measured."""
        step = 1 << max(18, int(size).bit_length() - 3)
        key = (-(-int(size) // step) * step, threads)
        if key not in self._reads:
            self._reads[key] = measure(sizes=(key[0],), threads=(threads,), rounds=5, peaks=False).bandwidth(key[0]) * 1e9
        return self._reads[key]

    def limits(self, threads: int) -> Limits:
        """For the roofline."""
        if threads not in self._peaks:
            self._peaks[threads] = measure(sizes=(), threads=(threads,), rounds=5)
        peaks = self._peaks[threads]
        rates = {kind: peaks.peak(kind) * 1e9 for kind in ("int8", "bf16", "fp32")}
        return Limits(lambda size: self.bandwidth(size, threads), rates["int8"], rates["bf16"], rates["fp32"])


def _ids(count: int, vocabulary: int) -> list[int]:
    return [(at * 7919 + 13) % (vocabulary - 1) + 1 for at in range(count)]


class _Bench:
    """One plan on some threads."""

    def __init__(self, path: Path, threads: int, machine: _Machine, sequences: int, tokens: int) -> None:
        self.path, self.threads, self.machine = path, threads, machine
        self.model = load(path, threads=threads, max_sequences=sequences, kv_tokens=tokens, verify="manifest")

    def point(self, axis: str, context: int, batch: int, steps: int) -> Point:
        """Fill `batch` sequences to `context`, then time steps of all of them."""
        model, vocabulary = self.model, self.model.plan.model.vocab_size
        numbers = list(range(batch))
        for number in numbers:
            have = model.length(number)
            if have > context:
                model.free(number)
                have = 0
            if have < context:
                model.prefill(_ids(context, vocabulary)[have:], number)
        tokens = [1 + number for number in numbers]
        seconds = []
        for _ in range(steps + 3):
            started = time.perf_counter()
            tokens = list(model.decode(tokens, numbers, lambda rows: list(rows.best)))
            seconds.append(time.perf_counter() - started)
        middle = context + (steps + 3) // 2
        cost = plan_cost(model.plan, Work.decode(middle, batch))
        limits = self.machine.limits(self.threads)
        read_limit = cost.memory_bytes / self.machine.bandwidth(cost.memory_bytes, self.threads)
        return Point(
            axis,
            self.path.stem,
            context,
            batch,
            self.threads,
            statistics.median(seconds[3:]),
            limit_seconds(cost, limits),
            cost.memory_bytes,
            read_limit,
        )

    def __enter__(self) -> _Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self.model.close()


def _measure(given: argparse.Namespace) -> list[Point]:
    machine, points = _Machine(), []
    first, *others = given.plans

    def add(point: Point) -> None:
        points.append(point)
        sys.stderr.write(f"{point.axis}: {point.plan} context {point.context} batch {point.batch} threads {point.threads}: ")
        sys.stderr.write(f"{point.seconds * 1e3:.2f} ms, limit {point.limit * 1e3:.2f} ms\n")

    longest = max([*given.contexts, _BASE_CONTEXT]) + 128
    for threads in given.threads:
        with _Bench(first, threads, machine, 1, longest) as bench:
            for context in given.contexts:
                # The last context is the plan's own length: leave room for the steps.
                add(bench.point("context", min(context, bench.model.plan.model.context_length - given.steps - 4), 1, given.steps))
    most = max(given.batches, default=0)
    if most:
        with _Bench(first, max(given.threads), machine, most, most * 256) as bench:
            for batch in given.batches:
                add(bench.point("batch", _BASE_CONTEXT, batch, given.steps))
    for path in [first, *others] if others else []:
        with _Bench(path, max(given.threads), machine, 1, 512) as bench:
            add(bench.point("model", _BASE_CONTEXT, 1, min(given.steps, 12) if path != first else given.steps))
    return points


def tables(points: list[Point]) -> str:
    """Markdown."""
    lines: list[str] = []
    for axis, title in (("context", "Context, batch 1"), ("batch", "Batch, context 128"), ("model", "Model size, context 128, batch 1")):
        rows = [p for p in points if p.axis == axis]
        if not rows:
            continue
        heads = ("plan", "context", "batch", "threads", "step", "tokens/s", "limit", "share of the limit", "read", "GB/s")
        lines += ["", f"**{title}**", "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
        for p in rows:
            step, rate, limit = f"{p.seconds * 1e3:.2f} ms", f"{p.batch / p.seconds:.0f}", f"{p.limit * 1e3:.2f} ms"
            read, speed = f"{p.read / _MB:.0f} MB", f"{p.read / p.seconds / 1e9:.1f}"
            cells = (p.plan, p.context, p.batch, p.threads, step, rate, limit, f"{p.limit / p.seconds:.0%}", read, speed)
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines[1:])


def main(arguments: list[str] | None = None) -> int:
    """0 when done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plans", nargs="*", type=Path)
    parser.add_argument("--contexts", nargs="*", type=int, default=_CONTEXTS)
    parser.add_argument("--batches", nargs="*", type=int, default=_BATCHES)
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--json", type=Path, help="keep the points here; with points there already, those of other axes stay")
    parser.add_argument("--draw", type=Path, nargs="+", help="saved runs to print instead of measuring")
    parser.add_argument("--svg", type=Path, help="draw the plot here")
    given = parser.parse_args(arguments)
    if given.draw:
        points = [Point(**p) for file in given.draw for p in json.loads(file.read_text(encoding="utf-8"))]
    elif given.plans:
        points = _measure(given)
        if given.json:
            given.json.write_text(json.dumps([asdict(p) for p in points]), encoding="utf-8")
    else:
        parser.error("name a plan, or a saved run with --draw")
    if given.svg:
        from benchmarks.scaling_plot import draw

        given.svg.write_text(draw([_series(points, axis) for axis in ("context", "batch")]), encoding="utf-8")
    sys.stdout.write(tables(points) + "\n")
    return 0


def _series(points: list[Point], axis: str) -> dict[str, Any]:
    """What the plot needs of an axis: for each number of threads the measured curve and its limit, ms by position."""
    rows = [p for p in points if p.axis == axis]
    curves = {}
    for threads in sorted({p.threads for p in rows}):
        own = [p for p in rows if p.threads == threads]
        curves[f"{threads} thread{'s' if threads > 1 else ''}"] = [(getattr(p, axis), p.seconds * 1e3, p.limit * 1e3) for p in own]
    return {"title": f"Step time by {axis}", "axis": axis, "curves": curves}


if __name__ == "__main__":
    raise SystemExit(main())
