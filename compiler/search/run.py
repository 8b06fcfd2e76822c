"""The whole search, top to bottom: preparation, loop, receipt."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec

from mixplan.compiler.clock import Clock
from mixplan.compiler.draft import Written
from mixplan.compiler.frontends import Captured
from mixplan.compiler.kernels import build_regions, write_regions
from mixplan.compiler.options import Options
from mixplan.compiler.output import reporting_disk_errors
from mixplan.compiler.search.bench import LATENCY_TOLERANCE, Attempt, Bench
from mixplan.compiler.search.failure import impossible, missed
from mixplan.compiler.search.loop import AXES, Built, Outcome, excess, search
from mixplan.compiler.search.outcome import make_receipt
from mixplan.compiler.search.prepare import Prepared, prepare
from mixplan.compiler.search.promise import Measure
from mixplan.compiler.search.reasons import choice_reasons
from mixplan.compiler.search.report import render_report
from mixplan.compiler.search.request import Request
from mixplan.compiler.search.solver import Axis, Problem, Solution
from mixplan.runtime.errors import InternalError
from mixplan.runtime.evaluation.measure import Reference
from mixplan.runtime.plan_files import RESERVED
from mixplan.runtime.receipt import RECEIPT, Receipt, encode_receipt

__all__ = ["REPORT", "Found", "find_plan", "find_prepared", "take_over"]

REPORT = "report.html"
KEPT = "nothing else was measured to pay"
"""Why an attention layer keeps f16."""
_SLACK = 4096


@dataclass(frozen=True)
class Found:
    """A plan that keeps its promise: in attempt.root, but for the files that `files` has, by name."""

    attempt: Attempt
    receipt: Receipt
    files: dict[str, bytes]
    attempts: int


def find_plan(captured: Captured, options: Options, request: Request, root: Path, clock: Clock) -> Found:
    """Search, building plans below `root`. Raises PromiseError where the promise cannot be kept, OptionError for a wrong text or pin."""
    prepared = prepare(captured, options, request, clock)
    promise = request.promise
    problem = prepared.problem(promise, root, clock)
    with ExitStack() as stack:
        reference: Reference = clock.run("reference", lambda: stack.enter_context(prepared.reference()))
        return find_prepared(prepared, request, problem, reference, root, clock)


def find_prepared(prepared: Prepared, request: Request, problem: Problem, reference: Reference, root: Path, clock: Clock) -> Found:
    """The loop alone, for a promise that shares its preparation with others."""
    promise = request.promise
    bench = Bench(
        prepared.captured,
        prepared.constants,
        prepared.options.with_scaler(prepared.scaler),
        promise,
        prepared.texts.held_out,
        reference,
        root,
        clock,
        prepared.units,
    )
    maker = _Maker(bench, problem, prepared, request)
    outcome = search(problem, promise, maker.build, maker.forget)
    if outcome is None:
        raise impossible(problem, promise)
    best = _accepted(problem, request, outcome)
    receipt = maker.receipt(best, outcome)
    files = {RECEIPT: encode_receipt(receipt), REPORT: render_report(best.written.plan, receipt, promise)}
    return Found(best, receipt, files, bench.attempts)


def take_over(found: Found, root: Path, options: Options, clock: Clock) -> Written:
    """Move the plan into `root`, with kernels for all levels and its receipt. What is left is the manifest."""
    attempt = found.attempt
    with reporting_disk_errors(root):
        for path in sorted(attempt.root.iterdir()):
            if path.is_file() and path.name not in RESERVED:
                path.rename(root / path.name)
        shutil.rmtree(attempt.root)
        for name, data in found.files.items():
            (root / name).write_bytes(data)
    built = clock.run("kernels", lambda: build_regions(attempt.draft.plan, options.units))
    plan = msgspec.structs.replace(attempt.draft.plan, regions=write_regions(root, built))
    return Written(plan, tuple(built), attempt.written.known)


def _accepted(problem: Problem, request: Request, outcome: Outcome) -> Attempt:
    """The best plan, if it keeps all that was promised."""
    promise, best = request.promise, outcome.best
    assert isinstance(best, Attempt)
    over = {name: excess(best, promise, [name]) for name in promise.limits}
    if any(ratio > (LATENCY_TOLERANCE if name == "latency" else 1.0) for name, ratio in over.items()):
        raise missed(problem, promise, outcome)
    return best


class _Maker:
    """Builds for the loop, and keeps what receipts need."""

    def __init__(self, bench: Bench, problem: Problem, prepared: Prepared, request: Request) -> None:
        self._bench = bench
        self._problem = problem
        self._groups = prepared.groups
        self._units = prepared.units
        self._fixed = [*prepared.menu.fixed, *("" if len(options) > 1 else KEPT for options in problem.options[len(prepared.groups) :])]
        self._promise = request.promise
        self._facts = prepared.facts
        costs = request.promise.costs
        self._axis: Axis = AXES[costs[0]] if costs else "bits"

    def build(self, solution: Solution) -> Attempt:
        """Build and measure a choice."""
        return self._bench.attempt(self._problem, self._groups, solution, self._reasons(solution), self._extra_bytes)

    def forget(self, built: Built) -> None:
        """Its files are not needed any more."""
        if not isinstance(built, Attempt):
            raise InternalError("A plan was built that is no attempt.")
        self._bench.drop(built)

    def receipt(self, attempt: Attempt, outcome: Outcome) -> Receipt:
        """Of the plan that is kept."""
        achieved: dict[Measure, float] = dict(attempt.upper)
        if attempt.quality is None:
            raise InternalError("A plan that was not measured on text was kept.")
        facts = {**self._facts, "plans_built": str(len(outcome.tried))}
        return make_receipt(
            self._promise,
            self._problem,
            self._groups,
            self._units,
            attempt.solution,
            self._reasons(attempt.solution),
            achieved,
            attempt.quality,
            facts,
        )

    def _reasons(self, solution: Solution) -> list[str]:
        return choice_reasons(self._problem, solution, self._axis, self._fixed)

    def _extra_bytes(self, attempt: Attempt) -> int:
        """What receipt and report will add to the plan's directory, about."""
        if "size" not in self._promise.limits:
            return 0
        receipt = self.receipt(attempt, Outcome(attempt, True, [attempt]))
        return len(encode_receipt(receipt)) + len(render_report(attempt.written.plan, receipt, self._promise)) + _SLACK
