"""What a search is about, before any plan is built: text, groups, menu, calibration, the table of losses, the unquantized original.

One preparation serves any number of promises that share its menu, as when budgets are compared (benchmarks/budgets.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from mixplan.compiler.calibration.collect import collect
from mixplan.compiler.calibration.statistics import Calibration
from mixplan.compiler.clock import Clock
from mixplan.compiler.constants import Constants
from mixplan.compiler.draft import Draft, copy_graph, make_draft
from mixplan.compiler.evaluation.reference import replay_reference, streamed_reference
from mixplan.compiler.frontends import Captured
from mixplan.compiler.options import Options
from mixplan.compiler.scaling import InputScaler
from mixplan.compiler.search.attention import AttentionUnit, attention_options, attention_units
from mixplan.compiler.search.candidates import Menu, default_candidates, restrict, runnable
from mixplan.compiler.search.costs import StepCosts, make_problem
from mixplan.compiler.search.groups import LayerGroup, find_groups
from mixplan.compiler.search.latency import check_work
from mixplan.compiler.search.promise import Promise
from mixplan.compiler.search.rates import measure_rates
from mixplan.compiler.search.request import Request
from mixplan.compiler.search.solver import Problem
from mixplan.compiler.search.text import Texts, read_texts
from mixplan.compiler.sensitivity import LossTable, loss_table
from mixplan.passes.base import Scaler
from mixplan.runtime.cost import Work
from mixplan.runtime.errors import UnsupportedError
from mixplan.runtime.evaluation.measure import Reference
from mixplan.targets.registry import get_target

__all__ = ["Prepared", "copied", "prepare", "searches_attention"]

# Models with more parameters are scored without gradients, which need the weights in memory again and again.
_LARGE = 2_000_000_000
# Models with more are read layer by layer wherever the original runs.
_IN_MEMORY = 1_000_000_000


@dataclass(frozen=True)
class Prepared:
    """draft: in the probe's format everywhere; what groups and costs are read off. constants: with the statistics of their inputs.
    scaler: what scales the inputs of layers in the plans that are built. units: attention layers, where they may be chosen for."""

    captured: Captured
    options: Options
    texts: Texts
    draft: Draft
    groups: Sequence[LayerGroup]
    menu: Menu
    constants: Constants
    table: LossTable
    scaler: Scaler | None = None
    units: Sequence[AttentionUnit] = ()

    @property
    def facts(self) -> dict[str, str]:
        """For the receipt."""
        return {**self.texts.facts, "sensitivity": self.table.method}

    def problem(self, promise: Promise, root: Path, clock: Clock) -> Problem:
        """The integer program of one promise. Measures this machine's rates, in a folder below `root`, where a latency is promised."""
        rates = None
        if "latency" in promise.limits:
            folder = root / "rates"
            rates = clock.run(
                "rates",
                lambda: measure_rates(copied(self.captured), self.options, self.groups, self.menu, self.units, promise, folder, clock),
            )
        work = Work.decode(promise.context, promise.batch)
        others = sum(len(data) for data in self.captured.files.values())
        attention = [attention_options(unit, self.table.attention.get(unit.layer), rates.attention) for unit in self.units] if rates else []
        return make_problem(
            self.groups, self.menu.options, self.table.loss, self.draft, StepCosts(self.draft, work, rates), others, attention
        )

    @contextmanager
    def reference(self) -> Iterator[Reference]:
        """The original on the held-out windows."""
        if self.captured.model.parameters > _IN_MEMORY:
            yield streamed_reference(self.captured, self.texts.held_out)
            return
        with replay_reference(copied(self.captured), self.texts.held_out) as reference:
            yield reference


def prepare(captured: Captured, options: Options, request: Request, clock: Clock) -> Prepared:
    """Everything up to the first plan. Raises OptionError for a wrong text, pin or candidate."""
    promise = request.promise
    if "latency" in promise.limits:
        check_work(promise, captured.model)
    texts: Texts = clock.run("text", lambda: read_texts(captured, request.text, request.eval_text))
    # What pins and exclusions name is told before anything takes long.
    draft = make_draft(
        copied(captured), Constants(captured.weights), replace(options.with_overrides(()), dump=None), replace(clock, progress=None)
    )
    groups = find_groups(draft)
    if not groups:
        raise UnsupportedError("The model has no weights to choose formats for.")
    target = get_target(options.targets[0])
    asked = request.candidates
    schemes = runnable(asked or default_candidates(promise), target.capabilities().formats, target.name, chosen=asked is not None)
    menu = restrict(groups, schemes, request.pins, request.excludes, captured.tied)
    calibration: Calibration = clock.run(
        "calibrate", lambda: collect(captured, texts.calibration.tolist(), progress=lambda done: clock.tell("calibrate", done))
    )
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
    constants = Constants(captured.weights, {**table.tables, **calibration.inputs})
    scaler = None
    if request.scaling != "none":
        scaler = InputScaler(Constants(captured.weights, calibration.inputs), request.scaling)
    units = attention_units(draft) if searches_attention(options, promise) and table.attention else ()
    if units:
        options = options.with_facts({"kv_dtype": "searched"})
    return Prepared(captured, options, texts, draft, groups, menu, constants, table, scaler, units)


def searches_attention(options: Options, promise: Promise) -> bool:
    """Whether the KV cache's formats are the search's to choose: they cost time alone, and the caller has not said what they are to be."""
    return "latency" in promise.limits and not options.attention_given and options.targets[0] == "cpu"


def copied(captured: Captured) -> Captured:
    """A capture whose graph passes may change."""
    return replace(captured, graph=copy_graph(captured.graph))
