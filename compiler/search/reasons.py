"""Why a group got its scheme: what its neighbours on the group's own curve would have cost or brought, beside the going rate."""

from __future__ import annotations

from collections.abc import Sequence

from mixplan.compiler.search.curve import hull
from mixplan.compiler.search.solver import Axis, Option, Problem, Solution

__all__ = ["amount", "choice_reasons", "going_rate"]


def choice_reasons(problem: Problem, solution: Solution, axis: Axis, fixed: Sequence[str]) -> list[str]:
    """A sentence for each group. axis: the cost that loss was traded for. fixed: why a group had no choice, "" where it had."""
    rate = going_rate(problem, solution, axis)
    return [
        why or _reason(problem, options, at, axis, rate) for options, at, why in zip(problem.options, solution.choice, fixed, strict=True)
    ]


def going_rate(problem: Problem, solution: Solution, axis: Axis) -> float:
    """Loss that the next unit of cost would save, spent where it saves most; 0.0 where nothing is left to save."""
    rates = []
    for options, at in zip(problem.options, solution.choice, strict=True):
        _, up = _neighbours(options, at, axis)
        if up is not None:
            rates.append((options[at].loss - options[up].loss) / (options[up].on(axis) - options[at].on(axis)))
    return max(rates, default=0.0)


def amount(problem: Problem, cost: float, axis: Axis) -> str:
    """A cost as people say it."""
    if axis == "bits":
        return f"{cost / problem.parameters:.4f} bits"
    return f"{cost / 1e3:,.1f} kB" if axis == "size" else f"{cost * 1e6:,.1f} us"


def _reason(problem: Problem, options: Sequence[Option], at: int, axis: Axis, rate: float) -> str:
    if len(options) == 1:
        return "the only candidate"
    down, up = _neighbours(options, at, axis)
    words = []
    if down is not None:
        spared, lost = options[at].on(axis) - options[down].on(axis), options[down].loss - options[at].loss
        words.append(f"{options[down].scheme} would spare {amount(problem, spared, axis)} of the plan and cost {lost:.2g} nats")
    if up is not None:
        spent, saved = options[up].on(axis) - options[at].on(axis), options[at].loss - options[up].loss
        words.append(f"{options[up].scheme} would take {amount(problem, spent, axis)} more and save {saved:.2g}")
        if rate > 0:
            words.append(f"elsewhere that buys {spent * rate:.2g}")
    return "; ".join(words) if words else "no other candidate is better in anything"


def _neighbours(options: Sequence[Option], at: int, axis: Axis) -> tuple[int | None, int | None]:
    """The next cheaper and the next dearer option on the group's hull."""
    kept = hull(options, axis)
    cost = options[at].on(axis)
    cheaper = [one for one in kept if options[one].on(axis) < cost and options[one].loss > options[at].loss]
    dearer = [one for one in kept if options[one].on(axis) > cost and options[one].loss < options[at].loss]
    return cheaper[-1] if cheaper else None, dearer[0] if dearer else None
