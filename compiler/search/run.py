"""The whole search, top to bottom: text, groups, menu, loss table, costs, reference, loop, receipt."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from mixplan.compiler.calibration.collect import collect
from mixplan.compiler.calibration.statistics import Calibration
from mixplan.compiler.clock import Clock
from mixplan.compiler.constants import Constants
from mixplan.compiler.draft import Written, copy_graph, make_draft
from mixplan.compiler.evaluation.reference import replay_reference
from mixplan.compiler.frontends import Captured
from mixplan.compiler.kernels import build_regions, write_regions
from mixplan.compiler.options import Options
from mixplan.compiler.output import reporting_disk_errors
from mixplan.compiler.search.bench import Attempt, Bench
from mixplan.compiler.search.candidates import Menu, default_candidates, restrict, runnable
from mixplan.compiler.search.costs import StepCosts, make_problem
from mixplan.compiler.search.failure import impossible, missed
from mixplan.compiler.search.groups import LayerGroup, find_groups
from mixplan.compiler.search.latency import check_work
from mixplan.compiler.search.loop import AXES, Built, Outcome, excess, search
from mixplan.compiler.search.outcome import make_receipt
from mixplan.compiler.search.promise import Measure
from mixplan.compiler.search.rates import measure_rates
from mixplan.compiler.search.reasons import choice_reasons
from mixplan.compiler.search.report import render_report
from mixplan.compiler.search.request import Request
from mixplan.compiler.search.solver import Axis, Problem, Solution
from mixplan.compiler.search.text import Texts, read_texts
from mixplan.compiler.sensitivity import LossTable, loss_table
from mixplan.runtime.cost import Work
from mixplan.runtime.errors import InternalError, UnsupportedError
from mixplan.runtime.plan_files import RESERVED
from mixplan.runtime.receipt import RECEIPT, Receipt, encode_receipt
from mixplan.targets.registry import get_target

__all__ = ["REPORT", "Found", "find_plan", "take_over"]

REPORT = "report.html"
_LATENCY_TOLERANCE = 1.05
"""What a latency may exceed its promise by when nothing faster was found: measurements of one plan differ by as much."""
_SLACK = 4096
# Models with more parameters are scored without gradients, which need the weights in memory again and again.
_LARGE = 2_000_000_000


@dataclass(frozen=True)
class Found:
    """A plan that keeps its promise: in attempt.root, but for the files that `files` has, by name."""

    attempt: Attempt
    receipt: Receipt
    files: dict[str, bytes]
    attempts: int


def find_plan(
    captured: Captured,
    options: Options,
    request: Request,
    root: Path,
    clock: Clock,
) -> Found:
    """Search, building plans below `root`. Raises PromiseError where the promise cannot be kept, OptionError for a wrong text or pin."""
    promise = request.promise
    if "latency" in promise.limits:
        check_work(promise, captured.model)
    texts: Texts = clock.run("text", lambda: read_texts(captured, request.text, request.eval_text))
    # What pins and exclusions name is told before anything takes long.
    draft = make_draft(
        _copied(captured), Constants(captured.weights), replace(options.with_overrides(()), dump=None), replace(clock, progress=None)
    )
    groups = find_groups(draft)
    if not groups:
        raise UnsupportedError("The model has no weights to choose formats for.")
    target = get_target(options.targets[0])
    formats = target.capabilities().formats
    asked = request.candidates
    schemes = runnable(asked or default_candidates(promise), formats, target.name, chosen=asked is not None)
    menu = restrict(groups, schemes, request.pins, request.excludes, captured.tied)
    calibration: Calibration = clock.run(
        "calibrate", lambda: collect(captured, texts.calibration.tolist(), progress=lambda done: clock.tell("calibrate", done))
    )
    constants = Constants(captured.weights, calibration.inputs)
    method = request.sensitivity or ("fisher" if captured.model.parameters <= _LARGE else "hessian")
    table: LossTable = clock.run(
        "score",
        lambda: loss_table(
            captured,
            groups,
            menu.schemes,
            calibration=calibration,
            windows=texts.gradients.tolist(),
            method=method,
            seed=options.seed,
            progress=lambda done: clock.tell("score", done),
        ),
    )
    work = Work.decode(promise.context, promise.batch)
    rates = None
    if "latency" in promise.limits:
        folder = root / "rates"
        rates = clock.run("rates", lambda: measure_rates(_copied(captured), constants, options, groups, menu, promise, folder, clock))
    others = sum(len(data) for data in captured.files.values())
    problem = make_problem(groups, menu.options, table.loss, draft, StepCosts(draft, work, rates), others)
    reference = clock.run("reference", lambda: replay_reference(_copied(captured), texts.held_out))
    facts = {**texts.facts, "sensitivity": table.method}
    with reference:
        bench = Bench(captured, constants, options, promise, texts.held_out, reference, root, clock)
        maker = _Maker(bench, problem, groups, menu, request, facts)
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
    built = clock.run("kernels", lambda: build_regions(attempt.draft.plan, options.levels))
    plan = msgspec.structs.replace(attempt.draft.plan, regions=write_regions(root, built))
    return Written(plan, tuple(built), attempt.written.known)


def _copied(captured: Captured) -> Captured:
    return replace(captured, graph=copy_graph(captured.graph))


def _accepted(problem: Problem, request: Request, outcome: Outcome) -> Attempt:
    """The best plan, if it keeps all that was promised."""
    promise, best = request.promise, outcome.best
    assert isinstance(best, Attempt)
    over = {name: excess(best, promise, [name]) for name in promise.limits}
    if any(ratio > (_LATENCY_TOLERANCE if name == "latency" else 1.0) for name, ratio in over.items()):
        raise missed(problem, promise, outcome)
    return best


class _Maker:
    """Builds for the loop, and keeps what receipts need."""

    def __init__(
        self, bench: Bench, problem: Problem, groups: Sequence[LayerGroup], menu: Menu, request: Request, facts: Mapping[str, str]
    ) -> None:
        self._bench = bench
        self._problem = problem
        self._groups = groups
        self._menu = menu
        self._promise = request.promise
        self._facts = facts
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
        facts = {**self._facts, "plans_built": str(len(outcome.tried))}
        return make_receipt(
            self._promise,
            self._problem,
            self._groups,
            attempt.solution,
            self._reasons(attempt.solution),
            achieved,
            attempt.quality,
            facts,
        )

    def _reasons(self, solution: Solution) -> list[str]:
        return choice_reasons(self._problem, solution, self._axis, self._menu.fixed)

    def _extra_bytes(self, attempt: Attempt) -> int:
        """What receipt and report will add to the plan's directory, about."""
        if "size" not in self._promise.limits:
            return 0
        receipt = self.receipt(attempt, Outcome(attempt, True, [attempt]))
        return len(encode_receipt(receipt)) + len(render_report(attempt.written.plan, receipt, self._promise)) + _SLACK
