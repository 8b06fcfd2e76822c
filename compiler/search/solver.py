"""One format for each group, the best by an integer program: a knapsack of many choices.

minimise the sum of one measure over the chosen candidates, under limits on sums of others, with exactly one candidate for each group
(HAWQ-V3, Yao et al., arXiv:2011.10680, poses mixed precision so). HiGHS solves it by branch and bound; the number of nodes is bounded, not
the time, so that a slower machine gives the same plan.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mixplan.compiler.search.kv_choice import KvChoice
from mixplan.passes.precision.schemes import Scheme
from mixplan.runtime.errors import InternalError

__all__ = ["Axis", "Option", "Problem", "Solution", "least", "solve"]

Axis: TypeAlias = Literal["loss", "bits", "size", "seconds"]
_AXES: tuple[Axis, ...] = ("loss", "bits", "size", "seconds")
_GAP = 1e-4
_NODES = 20_000
# What the other measures count for, together, in units of the objective: enough to decide between equals, too little to cost anything.
_TIE = 1e-6


@dataclass(frozen=True)
class Option:
    """One scheme for one group. loss: predicted mean divergence, nats; bits: of all its weights; size: bytes; seconds: of a step.

    scheme: of an attention layer, what it keeps and how it scores; it has no weights.
    """

    scheme: Scheme | KvChoice
    loss: float
    bits: float
    size: float
    seconds: float

    def on(self, axis: Axis) -> float:
        """One of the four."""
        return float(getattr(self, axis))


@dataclass(frozen=True)
class Problem:
    """Options for each group, and what the rest of the plan takes. Sums are over groups; bits are then divided by `parameters`."""

    options: tuple[tuple[Option, ...], ...]
    parameters: int
    fixed: Mapping[Axis, float]

    def total(self, choice: Sequence[int], axis: Axis) -> float:
        """The whole plan's measure; bits are effective bits."""
        total = self.fixed.get(axis, 0.0) + sum(options[at].on(axis) for options, at in zip(self.options, choice, strict=True))
        return total / self.parameters if axis == "bits" else total


@dataclass(frozen=True)
class Solution:
    """choice: for each group the index of its option. gap: how far the objective may be from the best there is, relative."""

    choice: tuple[int, ...]
    status: str
    gap: float
    loss: float
    bits: float
    size: float
    seconds: float

    def on(self, axis: Axis) -> float:
        """One of the four."""
        return float(getattr(self, axis))


def solve(problem: Problem, minimise: Axis, limits: Mapping[Axis, float]) -> Solution | None:
    """The best choice, None where no choice keeps the limits (which are of the whole plan; bits are effective bits)."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_matrix

    groups = [_useful(options, {minimise, *limits}) for options in problem.options]
    members = [(group, at) for group, kept in enumerate(groups) for at in kept]
    columns = {axis: np.array([problem.options[group][at].on(axis) for group, at in members]) for axis in _AXES}
    one_each = csr_matrix((np.ones(len(members)), ([group for group, _ in members], range(len(members)))), (len(groups), len(members)))
    constraints = [LinearConstraint(one_each, 1.0, 1.0)]
    for axis, limit in limits.items():
        room = limit * (problem.parameters if axis == "bits" else 1.0) - problem.fixed.get(axis, 0.0)
        scale = _scale(columns[axis])
        constraints.append(LinearConstraint(columns[axis][None] / scale, -np.inf, room / scale))
    cost = columns[minimise] / _scale(columns[minimise])
    for axis in _AXES:
        if axis != minimise:
            cost = cost + _TIE * columns[axis] / _scale(columns[axis])
    with _silent():
        found = milp(
            cost,
            integrality=np.ones(len(members)),
            bounds=Bounds(0.0, 1.0),
            constraints=constraints,
            options={"mip_rel_gap": _GAP, "node_limit": _NODES},
        )
    if found.x is None:
        if found.status == 2:
            return None
        raise InternalError(f"The integer program was not solved: {found.message}")
    choice = _choice(members, np.asarray(found.x), len(groups))
    gap = float(found.mip_gap) if found.mip_gap is not None else 0.0
    solution = _solution(problem, choice, "optimal" if found.status == 0 else "node limit", max(gap, 0.0))
    return solution if _kept(solution, limits) else _repaired(problem, solution, minimise, limits)


def least(problem: Problem, axis: Axis) -> Solution:
    """The choice with the least of one measure."""
    choice = tuple(min(range(len(options)), key=lambda at: (options[at].on(axis), options[at].loss, at)) for options in problem.options)
    return _solution(problem, choice, "optimal", 0.0)


@contextmanager
def _silent() -> Iterator[None]:
    """HiGHS writes notes of its own to standard output, where reports go; past Python, so the file itself is turned away."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def _solution(problem: Problem, choice: tuple[int, ...], status: str, gap: float) -> Solution:
    return Solution(choice, status, gap, *(problem.total(choice, axis) for axis in _AXES))


def _scale(values: NDArray[np.float64]) -> float:
    return float(np.abs(values).max(initial=0.0)) or 1.0


def _useful(options: Sequence[Option], axes: set[Axis]) -> list[int]:
    """Without options that another one beats, or equals, in all that counts; among equals the one that is better in the rest stays."""
    order = [axis for axis in _AXES if axis in axes]
    rest = [axis for axis in _AXES if axis not in axes]
    ranked = sorted(range(len(options)), key=lambda at: ([options[at].on(axis) for axis in (*order, *rest)], at))
    kept: list[int] = []
    for at in ranked:
        if not any(all(options[other].on(axis) <= options[at].on(axis) for axis in order) for other in kept):
            kept.append(at)
    return sorted(kept)


def _choice(members: Sequence[tuple[int, int]], x: NDArray[np.float64], groups: int) -> tuple[int, ...]:
    best: dict[int, tuple[float, int]] = {}
    for (group, at), value in zip(members, x, strict=True):
        if group not in best or value > best[group][0]:
            best[group] = (float(value), at)
    return tuple(best[group][1] for group in range(groups))


def _kept(solution: Solution, limits: Mapping[Axis, float]) -> bool:
    return all(solution.on(axis) <= limit for axis, limit in limits.items())


def _repaired(problem: Problem, solution: Solution, minimise: Axis, limits: Mapping[Axis, float]) -> Solution | None:
    """The solver keeps limits to a tolerance of its own; where one is exceeded by that, the cheapest exchange that mends it."""
    choice = list(solution.choice)
    for _ in range(4 * len(choice)):
        now = _solution(problem, tuple(choice), solution.status, solution.gap)
        over = [axis for axis, limit in limits.items() if now.on(axis) > limit]
        if not over:
            return now
        axis = over[0]
        moves = [
            (options[at].on(minimise) - options[choice[group]].on(minimise), group, at)
            for group, options in enumerate(problem.options)
            for at in range(len(options))
            if options[at].on(axis) < options[choice[group]].on(axis)
            and all(options[at].on(other) <= options[choice[group]].on(other) for other in limits if other != axis)
        ]
        if not moves:
            return None
        _, group, at = min(moves)
        choice[group] = at
    return None
