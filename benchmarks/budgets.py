"""What mixing formats is worth: plans searched for at each budget, beside plans of one format and the rule that keeps both ends wide.

    python -m benchmarks.budgets CHECKPOINT --text FIT.txt --eval-text HELD.txt [--bits 4.5 5.0 ...] [--uniform] [--rule] [--save FILE]

Every plan is built and measured as the runtime runs it, on the first 16 windows of 512 tokens of the second text: mean KL divergence from
the original in float32. All are quantized with the same calibration and the same error compensation; only the choice of formats differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from mixplan.compiler.clock import Clock
from mixplan.compiler.frontends import open_checkpoint
from mixplan.compiler.options import parse_options
from mixplan.compiler.scaling import SCALINGS
from mixplan.compiler.search.bench import Bench
from mixplan.compiler.search.candidates import parse_candidates
from mixplan.compiler.search.costs import PROBE, StepCosts, make_problem
from mixplan.compiler.search.groups import LayerGroup
from mixplan.compiler.search.prepare import Prepared, prepare
from mixplan.compiler.search.promise import parse_promise
from mixplan.compiler.search.request import Request, parse_request
from mixplan.compiler.search.run import find_prepared
from mixplan.compiler.search.solver import Problem, Solution
from mixplan.passes.precision.schemes import Scheme, parse_scheme
from mixplan.runtime.cost import Work
from mixplan.runtime.evaluation.measure import Reference
from mixplan.runtime.receipt import Receipt

__all__ = ["Row", "main", "table"]

BUDGETS = (3.5, 4.0, 4.5, 5.0, 5.5, 6.0, 6.5, 7.0, 7.5, 8.0, 8.5)
# One format everywhere: the candidates' own, and the plainer ones that others use.
UNIFORM = (
    *("W3A16:g64,nl,s8", "W3A16:g32,nl,s8", "W3A16:g32,asym", "W4A16:g64,nl,s8", "W4A16:g32,nl,s8", "W4A16:g32", "W4A16:g32,min"),
    *("W5A16:g64,nl,s8", "W5A16:g32,nl,s8", "W6A16:g64,s8", "W6A16:g32,s8", "W8A16", "W8A16:g32,s8"),
)
_WIDE = parse_scheme("W8A16")


@dataclass(frozen=True)
class Row:
    """One plan. kind: mixed, uniform, or rule: both ends in 8 bits. asked: its budget, 0 where none."""

    kind: str
    name: str
    asked: float
    bits: float
    kld: float
    kld_p99: float
    perplexity: float
    same_top: float
    predicted: float
    seconds: float


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.budgets", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--eval-text", type=Path, required=True)
    parser.add_argument("--bits", type=float, nargs="*", default=list(BUDGETS))
    parser.add_argument("--uniform", nargs="*", default=list(UNIFORM), help="schemes of one format everywhere; none: leave them out")
    parser.add_argument("--no-rule", action="store_true", help="without the plans that keep first and last layers wide")
    parser.add_argument("--scaling", default="none", choices=SCALINGS, help="for all plans alike")
    parser.add_argument("--isa", default="native")
    parser.add_argument("--save", type=Path, help="write the rows here after each plan, as JSON")
    return parser


class _Study:
    def __init__(self, prepared: Prepared, request: Request, reference: Reference, folder: Path, save: Path | None) -> None:
        self._prepared, self._request, self._reference, self._folder, self._save = prepared, request, reference, folder, save
        self._count = 0
        self.rows: list[Row] = []

    def mixed(self, bits: float) -> None:
        promise = parse_promise(bits=bits)
        assert promise is not None
        with self._root() as root:
            problem = self._prepared.problem(promise, root, Clock(None))
            started = time.perf_counter()
            clock = Clock(None)
            found = find_prepared(self._prepared, _with(self._request, bits), problem, self._reference, root, clock)
            sys.stderr.write(f"{clock.seconds}\n")
            self._add("mixed", f"{bits:g} bits", bits, found.receipt, time.perf_counter() - started)

    def fixed(self, kind: str, scheme: Scheme, ends: Sequence[LayerGroup] = ()) -> None:
        """One scheme everywhere but for `ends`."""
        prepared = self._prepared
        options = [(_WIDE,) if group in ends else (scheme,) for group in prepared.groups]
        loss = {(group.name, str(one[0])): 0.0 for group, one in zip(prepared.groups, options, strict=True)}
        problem = make_problem(prepared.groups, options, loss, prepared.draft, StepCosts(prepared.draft, Work.decode(512)))
        with self._root() as root:
            started = time.perf_counter()
            bench = Bench(
                *(prepared.captured, prepared.constants, prepared.options.with_scaler(prepared.scaler)),
                *(self._request.promise, prepared.texts.held_out),
                *(self._reference, root, Clock(None)),
            )
            choice = _only(problem)
            made = bench.attempt(problem, prepared.groups, choice, [""] * len(options), lambda _: 0)
            quality = made.quality
            assert quality is not None  # no latency is promised
            figures = (quality.kld_mean, quality.kld_p99, quality.perplexity, quality.same_top)
            self._append(Row(kind, str(scheme), 0.0, made.written.plan.effective_bits, *figures, 0.0, time.perf_counter() - started))

    def ends(self) -> list[LayerGroup]:
        """Embedding, head, and the first and last block: the groups of the first and last few layers in order."""
        groups = list(self._prepared.groups)
        numbers = sorted({number for group in groups if (number := _block(group)) is not None})
        return [group for group in groups if _block(group) in (None, numbers[0], numbers[-1])]

    @contextmanager
    def _root(self) -> Iterator[Path]:
        self._count += 1
        with tempfile.TemporaryDirectory(dir=self._folder) as name:
            yield Path(name)

    def _add(self, kind: str, name: str, asked: float, receipt: Receipt, seconds: float) -> None:
        measured = receipt.measured
        figures = (measured["kld_mean"], measured["kld_p99"], measured["perplexity"], measured["same_top"])
        self._append(Row(kind, name, asked, receipt.achieved["bits"], *figures, receipt.solver.predicted, seconds))

    def _append(self, row: Row) -> None:
        self.rows.append(row)
        sys.stderr.write(f"{row}\n")
        if self._save is not None:
            self._save.write_text(json.dumps([asdict(one) for one in self.rows], indent=1), encoding="utf-8")


def _block(group: LayerGroup) -> int | None:
    """The number of the block that a group's layers are in."""
    parts = [part for part in group.layers[0].split(".") if part.isdigit()]
    return int(parts[0]) if parts else None


def _only(problem: Problem) -> Solution:
    choice = (0,) * len(problem.options)
    totals = {axis: problem.total(choice, axis) for axis in ("loss", "bits", "size", "seconds")}
    return Solution(choice=choice, status="given", gap=0.0, **totals)


def _request(text: Path, eval_text: Path, bits: float, scaling: str, candidates: Sequence[str] | None = None) -> Request:
    named = {"max_size": None, "max_loss": None, "max_kld": None, "max_latency": None, "scheme": None, "sensitivity": None}
    lists: dict[str, Sequence[str]] = {"pins": (), "excludes": (), "overrides": ()}
    request = parse_request(
        text=text,
        eval_text=eval_text,
        bits=bits,
        batch=1,
        context=512,
        candidates=candidates,
        group_size=32,
        symmetric=True,
        scaling=scaling,
        **named,
        **lists,
    )
    assert request is not None
    return request


def _with(request: Request, bits: float) -> Request:
    assert isinstance(request.text, Path) and isinstance(request.eval_text, Path)
    return _request(request.text, request.eval_text, bits, request.scaling)


def table(rows: Sequence[Row]) -> str:
    """All rows by bits; beside each mixed plan the best of one format, and of the rule, of its bits or up to half a bit more."""
    lines = [
        "| kind | formats | bits | KLD | KLD p99 | perplexity | same top | predicted | next uniform | rule |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda one: (one.bits, one.kind)):
        beside = [_ratio(row, [one for one in rows if one.kind == kind]) if row.kind == "mixed" else "" for kind in ("uniform", "rule")]
        predicted = f"{row.predicted:.3g}" if row.predicted else ""
        lines.append(
            f"| {row.kind} | {row.name} | {row.bits:.3f} | {row.kld:.3g} | {row.kld_p99:.3g} | {row.perplexity:.2f} | {row.same_top:.1%} "
            f"| {predicted} | {' | '.join(beside)} |"
        )
    return "\n".join(lines)


def _ratio(row: Row, others: Sequence[Row]) -> str:
    wider = [one for one in others if row.bits - 0.005 <= one.bits <= row.bits + 0.5]
    if not wider:
        return ""
    best = min(wider, key=lambda one: one.kld)
    return f"{row.kld / best.kld:.2f}x of {best.name} ({best.bits:.2f})"


def main(arguments: list[str] | None = None) -> int:
    """0 when all plans were measured, whatever came out."""
    given = _options().parse_args(arguments)
    budgets = given.bits or [8.0]
    options = parse_options(
        scheme=str(PROBE), group_size=32, symmetric=True, overrides=(), passes=(), dump=None, targets=("cpu",), isa=(given.isa,),
        max_step_tokens=512, seed=0, kv_dtype=None, shard_bytes=1 << 32,
    )  # fmt: skip
    # The menu of the least budget has all candidates.
    request = _request(given.text, given.eval_text, min(budgets), given.scaling)
    checkpoint = open_checkpoint(given.checkpoint)
    try:
        captured = checkpoint.capture()
        clock = Clock(None)
        prepared = prepare(captured, options, request, clock)
        sys.stderr.write(f"prepared: {clock.seconds}\n")
        uniform = parse_candidates(given.uniform) if given.uniform else ()
        with prepared.reference() as reference, tempfile.TemporaryDirectory() as folder:
            study = _Study(prepared, request, reference, Path(folder), given.save)
            for bits in budgets:
                study.mixed(bits)
            for scheme in uniform:
                study.fixed("uniform", scheme)
                if not given.no_rule and scheme.weight.bits < _WIDE.weight.bits:
                    study.fixed("rule", scheme, study.ends())
    finally:
        checkpoint.close()
    sys.stdout.write(table(study.rows) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
