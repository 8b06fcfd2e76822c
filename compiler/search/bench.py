"""Builds the plan of a choice and measures it, as the runtime runs it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mixplan.compiler.attention import AttentionRules
from mixplan.compiler.clock import Clock
from mixplan.compiler.constants import Constants
from mixplan.compiler.draft import Draft, Written, copy_graph, make_draft, write_draft
from mixplan.compiler.frontends import Captured
from mixplan.compiler.options import Options
from mixplan.compiler.search.attention import AttentionUnit, attention_rules
from mixplan.compiler.search.groups import LayerGroup
from mixplan.compiler.search.kv_choice import KvChoice
from mixplan.compiler.search.latency import decode_seconds
from mixplan.compiler.search.promise import Measure, Promise
from mixplan.compiler.search.solver import Problem, Solution
from mixplan.passes.precision.overrides import Override
from mixplan.passes.precision.schemes import Scheme
from mixplan.runtime import load
from mixplan.runtime.devices.cpu_info import runnable_levels
from mixplan.runtime.evaluation.measure import Measured, Reference, measure
from mixplan.runtime.plan_io import write_manifest
from mixplan.targets.levels import levels_for
from mixplan.targets.registry import get_target

__all__ = ["LATENCY_TOLERANCE", "RULE_SOLVER", "Attempt", "Bench", "native_levels"]

LATENCY_TOLERANCE = 1.05
"""What a latency may exceed its promise by when nothing faster was found: measurements of one plan differ by as much."""
RULE_SOLVER = "solver"
_STAGES = {"passes": (0.0, 0.1), "lower": (0.1, 0.15), "weights": (0.15, 0.5), "measure": (0.5, 0.98), "done": (0.98, 1.0)}
"""The parts of an attempt's bar."""


@dataclass
class Attempt:
    """A plan that was built and measured. upper: what a promise is held against: the figure, with a standard error where it has one.

    quality: None where the plan is too slow for a promise of latency alone, which is all that it is to keep.
    """

    number: int
    root: Path
    solution: Solution
    draft: Draft
    written: Written
    quality: Measured | None
    latency: float | None
    size: int
    upper: dict[Measure, float] = field(default_factory=dict)

    def excess(self, limits: Mapping[Measure, float]) -> float:
        """The largest ratio of a figure to its limit; at most 1 where all are kept."""
        return max(self.upper[name] / limit for name, limit in limits.items())


def native_levels(options: Options) -> tuple[str, ...]:
    """The one level of the plan that will run here; the machine's own where none of the plan's does."""
    runnable = runnable_levels()
    if "cpu" not in options.targets or not runnable:
        return options.levels
    built = get_target("cpu").resolve_levels(levels_for("cpu", options.levels))
    return (next((level for level in runnable if level in built), "native"),)


class Bench:
    """Everything that attempts share. Each is made in a folder of its own below `root`. units: attention layers, whose options stand after
    those of the groups in a problem."""

    def __init__(
        self,
        captured: Captured,
        constants: Constants,
        options: Options,
        promise: Promise,
        windows: NDArray[np.int64],
        reference: Reference,
        root: Path,
        clock: Clock,
        units: Sequence[AttentionUnit] = (),
    ) -> None:
        self._units = units
        self._captured = captured
        self._constants = constants
        self._options = options
        self._promise = promise
        self._windows = windows
        self._reference = reference
        self._root = root
        self._clock = clock
        self._count = 0

    @property
    def attempts(self) -> int:
        """How many were made."""
        return self._count

    def overrides(self, problem: Problem, groups: Sequence[LayerGroup], solution: Solution, reasons: Sequence[str]) -> list[Override]:
        """The choice as the passes take it."""
        found = []
        count = len(groups)
        for group, options, at, reason in zip(groups, problem.options[:count], solution.choice[:count], reasons[:count], strict=True):
            rule = RULE_SOLVER if len(options) > 1 else "pin"
            scheme = options[at].scheme
            assert isinstance(scheme, Scheme)
            found += [Override(layer, scheme, False, rule, reason) for layer in group.layers]
        return found

    def attention(self, problem: Problem, solution: Solution) -> AttentionRules:
        """What attention layers keep, where that was chosen."""
        chosen = zip(problem.options, solution.choice, strict=True)
        kept = [scheme for options, at in chosen if isinstance(scheme := options[at].scheme, KvChoice)]
        return attention_rules(self._units, kept, self._options.attention) if self._units else self._options.attention

    def attempt(
        self,
        problem: Problem,
        groups: Sequence[LayerGroup],
        solution: Solution,
        reasons: Sequence[str],
        extra_bytes: Callable[[Attempt], int],
    ) -> Attempt:
        """Build and measure."""
        self._count += 1
        clock = replace(self._clock, progress=self._bar())
        root = self._root / f"search-{self._count}"
        root.mkdir()
        options = self._options.with_overrides(self.overrides(problem, groups, solution, reasons))
        options = replace(options, attention=self.attention(problem, solution))
        if options.dump is not None:
            options = replace(options, dump=options.dump / root.name)
        captured = replace(self._captured, graph=copy_graph(self._captured.graph))
        draft = make_draft(captured, self._constants, options, clock)
        limits = self._promise.limits
        levels = options.levels if "size" in limits else native_levels(options)
        written = write_draft(root, draft, captured, self._constants, options.units.at(levels), clock)
        write_manifest(root, written.plan, known=written.known)
        latency = None
        if "latency" in limits:
            latency = clock.timed("latency", lambda: decode_seconds(root, self._promise.batch, self._promise.context))
        # What is too slow to be taken, and only for that, need not be read a text.
        late = latency is not None and tuple(limits) == ("latency",) and latency > limits["latency"] * LATENCY_TOLERANCE
        quality = None if late else self._quality(root, clock)
        size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
        made = Attempt(self._count, root, solution, draft, written, quality, latency, size)
        made.size += extra_bytes(made)
        made.upper = _figures(made, self._promise)
        self._clock.parallel = clock.parallel
        if clock.progress is not None:
            clock.progress("done", 1.0)
        return made

    def _quality(self, root: Path, clock: Clock) -> Measured:
        with load(root, trust=True, max_sequences=1, kv_tokens=self._windows.shape[1]) as model:
            watch = clock.progress and (lambda _, fraction: clock.tell("measure", fraction))
            quality: Measured = clock.timed("measure", lambda: measure(model, self._windows, self._reference, progress=watch))
        return quality

    def drop(self, attempt: Attempt) -> None:
        """Remove its files."""
        shutil.rmtree(attempt.root, ignore_errors=True)

    def _bar(self) -> Callable[[str, float], None] | None:
        """One bar for an attempt, whatever its stages."""
        tell = self._clock.progress
        if tell is None:
            return None
        number = self._count

        def show(stage: str, fraction: float) -> None:
            low, high = _STAGES.get(stage, (0.0, 0.0))
            if high > low:
                tell(f"plan {number}", low + (high - low) * fraction)

        return show


def _figures(made: Attempt, promise: Promise) -> dict[Measure, float]:
    """One standard error counts against the plan, so that other text of the kind is likely to keep the promise too."""
    quality = made.quality

    def upper(value: float, error: float) -> float:
        return value + (error if error == error else 0.0)

    figures: dict[Measure, float] = {"bits": made.written.plan.effective_bits, "size": float(made.size)}
    if quality is not None:
        figures["loss"] = upper(quality.loss, quality.loss_error)
        figures["kld"] = upper(quality.kld_mean, quality.kld_error)
    if made.latency is not None:
        figures["latency"] = made.latency
    return {name: figures[name] for name in promise.limits}
