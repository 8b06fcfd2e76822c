"""Solve, build, measure, correct the prediction, solve again: until the promise is kept and no more can be had, or cannot be."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from mixplan.compiler.search.budget import Budget, Offset
from mixplan.compiler.search.promise import Measure, Promise
from mixplan.compiler.search.solver import Axis, Problem, Solution, least, solve

__all__ = ["AXES", "MOST_ATTEMPTS", "Built", "Outcome", "excess", "objective_axis", "predicted_limits", "search"]

AXES: Mapping[Measure, Axis] = {"bits": "bits", "size": "size", "latency": "seconds", "kld": "loss", "loss": "loss"}
MOST_ATTEMPTS = 7
_OPTIMISM = 1.4
"""What is measured over what is predicted, before anything is measured: weights are fitted to the text that predictions are made from."""
_CLOSE = 0.95
"""A corrected limit that is used up to this share is used up."""
_WORTH = 0.004
"""A gain in the objective, relative, that is worth another plan."""


class Built(Protocol):
    """A plan that was built and measured: `upper` has the figures that the promise is held against."""

    @property
    def solution(self) -> Solution:
        """The choice that it was built from."""

    @property
    def upper(self) -> Mapping[Measure, float]:
        """By promise."""


Build: TypeAlias = Callable[[Solution], Built]


@dataclass
class Outcome:
    """best: the plan that keeps the promise, or where none does the nearest to it. tried: all, in order. budgets: as corrected."""

    best: Built
    kept: bool
    tried: list[Built]
    budgets: dict[Measure, Budget | Offset] = field(default_factory=dict)

    def scale(self, promise: Promise) -> float:
        """Measured loss over predicted loss; 1 where no quality was promised."""
        found = [self.budgets[name].scale for name in promise.qualities if name in self.budgets]
        return found[0] if found else 1.0


def objective_axis(promise: Promise) -> Axis:
    """What the solver minimises."""
    return AXES[promise.objective]


def search(problem: Problem, promise: Promise, build: Build, forget: Callable[[Built], None]) -> Outcome | None:
    """The best plan that keeps what the objective is bounded by; None where the candidates cannot even on paper, without correction.

    build(solution) builds and measures; forget(built) is told of plans that are no longer needed. Raises nothing of its own.
    """
    axis = objective_axis(promise)
    budgets = _budgets(promise)
    outcome: Outcome | None = None
    while True:
        solution = _next(problem, axis, budgets, outcome)
        if solution is None:
            return outcome
        built = build(solution)
        for name, budget in budgets.items():
            budget.add(solution.on(AXES[name]), built.upper[name])
        outcome = _judge(outcome, built, promise, budgets, axis, forget)
        if len(outcome.tried) >= MOST_ATTEMPTS or (outcome.kept and _settled(problem, outcome, axis, budgets)):
            return outcome


def predicted_limits(budgets: Mapping[Measure, Budget | Offset]) -> dict[Axis, float]:
    """What the solver may predict, by axis; where two promises bound one, the tighter."""
    limits: dict[Axis, float] = {}
    for name, budget in budgets.items():
        axis = AXES[name]
        limits[axis] = min(limits.get(axis, math.inf), budget.value())
    return limits


def _budgets(promise: Promise) -> dict[Measure, Budget | Offset]:
    budgets: dict[Measure, Budget | Offset] = {}
    for name in promise.bounds:
        limit = promise.limits[name]
        # A model that is well calibrated on the text loses about as much likelihood as its divergence is.
        start = limit if name == "latency" else (math.log1p(limit) if name == "loss" else limit) / _OPTIMISM
        budgets[name] = Offset(limit) if name in ("bits", "size") else Budget(limit, start)
    return budgets


def _next(problem: Problem, axis: Axis, budgets: Mapping[Measure, Budget | Offset], outcome: Outcome | None) -> Solution | None:
    """What to build next: never the same twice."""
    limits = predicted_limits(budgets)
    tried = {one.solution.choice for one in outcome.tried} if outcome is not None else set()
    found = solve(problem, axis, limits)
    if found is None:
        # Too tight on paper; what is measured may be better than what is predicted, where it is not known exactly.
        tightest = least(problem, next(iter(limits)))
        exact = all(isinstance(budget, Offset) for budget in budgets.values())
        if (exact and outcome is not None) or (outcome is not None and outcome.kept):
            return None
        if exact and not _within(tightest, limits):
            return None
        found = tightest
    return None if found.choice in tried else found


def _within(solution: Solution, limits: Mapping[Axis, float]) -> bool:
    return all(solution.on(axis) <= limit for axis, limit in limits.items())


def _judge(
    outcome: Outcome | None,
    built: Built,
    promise: Promise,
    budgets: dict[Measure, Budget | Offset],
    axis: Axis,
    forget: Callable[[Built], None],
) -> Outcome:
    """The better of this plan and the best before it."""
    kept = excess(built, promise, promise.bounds) <= 1
    if outcome is None:
        return Outcome(built, kept, [built], budgets)
    if kept and outcome.kept:
        better = built.solution.on(axis) < outcome.best.solution.on(axis)
    elif kept or outcome.kept:
        better = kept
    else:
        better = excess(built, promise, promise.bounds) < excess(outcome.best, promise, promise.bounds)
    forget(outcome.best if better else built)
    return Outcome(built if better else outcome.best, kept or outcome.kept, [*outcome.tried, built], budgets)


def excess(built: Built, promise: Promise, names: Sequence[Measure]) -> float:
    """The largest ratio of a figure to its limit."""
    return max(built.upper[name] / promise.limits[name] for name in names)


def _settled(problem: Problem, outcome: Outcome, axis: Axis, budgets: Mapping[Measure, Budget | Offset]) -> bool:
    """Whether another plan could not be noticeably better."""
    corrected = [(name, budget) for name, budget in budgets.items() if isinstance(budget, Budget)]
    if not corrected:
        return True
    if max(outcome.best.upper[name] / budget.limit for name, budget in corrected) >= _CLOSE:
        return True
    next_one = solve(problem, axis, predicted_limits(budgets))
    return next_one is None or next_one.on(axis) >= outcome.best.solution.on(axis) * (1 - _WORTH)
