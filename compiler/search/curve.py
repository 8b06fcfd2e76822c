"""The Pareto curve: for each budget the best mix, by exchanges along each group's hull (Everett's Lagrange multipliers, Operations
Research 11(3), 1963). Every point is a plan that could be had; between two neighbours lies one group's step, so none is far from optimal.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from mixplan.compiler.search.solver import Axis, Option, Problem
from mixplan.passes.precision.schemes import Scheme
from mixplan.runtime.receipt import CurvePoint

__all__ = ["UNIFORM", "Step", "hull", "pareto", "steps", "uniform_points"]

UNIFORM = "uniform"
"""The kind of points with one scheme, which follows."""

_POINTS = 40


class Step:
    """From one option of a group's hull to the next dearer one: `cost` more, `gain` less loss. rate: gain for each unit of cost."""

    __slots__ = ("before", "cost", "gain", "group", "option")

    def __init__(self, group: int, before: int, option: int, cost: float, gain: float) -> None:
        self.group, self.before, self.option, self.cost, self.gain = group, before, option, cost, gain

    @property
    def rate(self) -> float:
        """Loss saved for a unit of cost."""
        return self.gain / self.cost if self.cost > 0 else float("inf")


def hull(options: Sequence[Option], axis: Axis) -> list[int]:
    """Indices of the options on the lower convex hull of (cost, loss), cheapest first: those that some price makes the best."""
    order = sorted(range(len(options)), key=lambda at: (options[at].on(axis), options[at].loss, at))
    kept: list[int] = []
    for at in order:
        if kept and options[at].loss >= options[kept[-1]].loss:
            continue
        while kept and options[kept[-1]].on(axis) == options[at].on(axis):
            kept.pop()
        while len(kept) > 1 and _rate(options, kept[-1], at, axis) >= _rate(options, kept[-2], kept[-1], axis):
            kept.pop()
        kept.append(at)
    return kept


def _rate(options: Sequence[Option], low: int, high: int, axis: Axis) -> float:
    return (options[low].loss - options[high].loss) / (options[high].on(axis) - options[low].on(axis))


def steps(problem: Problem, axis: Axis) -> tuple[list[int], list[Step]]:
    """Where each group starts (its cheapest option of the hull), and all steps from there, best first."""
    start: list[int] = []
    found: list[Step] = []
    for group, options in enumerate(problem.options):
        kept = hull(options, axis)
        start.append(kept[0])
        for low, high in pairwise(kept):
            cost = options[high].on(axis) - options[low].on(axis)
            found.append(Step(group, low, high, cost, options[low].loss - options[high].loss))
    # Within a group rates fall, so this order never takes a later step before an earlier one; ties go by group and option.
    found.sort(key=lambda step: (-step.rate, step.group, step.cost))
    return start, found


def pareto(problem: Problem, axis: Axis, kind: str) -> list[CurvePoint]:
    """About 40 points from the cheapest mix to the best."""
    choice, taken = steps(problem, axis)
    points = [_point(problem, choice, kind)]
    total = sum(step.cost for step in taken)
    spent, told = 0.0, 0.0
    for step in taken:
        choice[step.group] = step.option
        spent += step.cost
        if spent - told >= total / _POINTS or step is taken[-1]:
            points.append(_point(problem, choice, kind))
            told = spent
    return points


def uniform_points(problem: Problem) -> list[CurvePoint]:
    """One scheme for every group that may have it; groups that are bound to another keep theirs, and attention layers f16."""
    weights = [options for options in problem.options if isinstance(options[0].scheme, Scheme)]
    names = list(dict.fromkeys(str(option.scheme) for options in weights for option in options if len(options) > 1))
    points = []
    for name in names:
        choice = []
        for options in problem.options:
            if not isinstance(options[0].scheme, Scheme):
                choice.append(0)
                continue
            found = [at for at, option in enumerate(options) if str(option.scheme) == name]
            if not found and len(options) > 1:
                found = _same_weight(options, name, weights)
            if not found and len(options) > 1:
                break
            choice.append(found[0] if found else 0)
        else:
            points.append(_point(problem, choice, f"{UNIFORM} {name}"))
    return points


def _same_weight(options: Sequence[Option], name: str, weights: Sequence[Sequence[Option]]) -> list[int]:
    """For groups that have a scheme's weight format under another name."""
    scheme = next(option.scheme for others in weights for option in others if str(option.scheme) == name)
    assert isinstance(scheme, Scheme)
    return [at for at, option in enumerate(options) if isinstance(option.scheme, Scheme) and option.scheme.weight == scheme.weight]


def _point(problem: Problem, choice: Sequence[int], kind: str) -> CurvePoint:
    return CurvePoint(problem.total(choice, "bits"), problem.total(choice, "loss"), problem.total(choice, "seconds"), kind)
