"""The cheapest assignment of nodes to units, and the rule that small work stays where it is.

Nodes stand in one order, so an assignment is a row of stretches. Its cost is what the nodes take on their units, a call for each stretch,
and a transfer at each change of unit, of the values that are made before it and read after it. The cheapest row is found by dynamic
programming over the nodes, with the unit of the last node as the state (the method of Viterbi, 1967).

Then each stretch away from the first unit must keep the rules: enough compute, little enough at its borders. One that does not goes back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import inf

from mixplan.compiler.placing.rules import PlacingRules
from mixplan.runtime.plan import Plan, dim_value
from mixplan.targets.base import CostModel

__all__ = ["Assignment", "Candidate", "Stretch", "assign", "value_bytes"]


@dataclass(frozen=True)
class Candidate:
    """One unit: its cost model, seconds of each node, and why it does not take a node ("" where it does)."""

    name: str
    model: CostModel
    seconds: Sequence[float]
    refusals: Sequence[str]


@dataclass(frozen=True)
class Stretch:
    """Nodes [start, stop) on one unit, and why."""

    unit: str
    start: int
    stop: int
    reason: str


@dataclass(frozen=True)
class Assignment:
    """The unit of each node, and stretches in order with their reasons."""

    units: tuple[str, ...]
    stretches: tuple[Stretch, ...]


def value_bytes(plan: Plan, index: int, tokens: int) -> int:
    """Bytes of a value in a step of so many tokens, one of whose rows of logits is wanted."""
    size = plan.values[index].dtype.itemsize
    for dim in plan.values[index].shape:
        size *= dim_value(dim, tokens=tokens, rows=1)
    return size


def assign(plan: Plan, candidates: Sequence[Candidate], fallback: str, rules: PlacingRules) -> Assignment:
    """`candidates` in the order of the user: the first is where work stays. Nodes that none takes go to `fallback`."""
    crossing = _crossing_bytes(plan, rules.tokens)
    chosen = _cheapest(candidates, crossing, rules)
    units = [candidates[c].name if c >= 0 else fallback for c in chosen]
    sent_back: dict[int, str] = {}
    home = candidates[0]
    for unit, start, stop in _stretches(units):
        if unit in (home.name, fallback):
            continue
        for first, last in _free_parts(home, start, stop):
            why = _too_small(plan, home, unit, first, last, rules)
            if why:
                units[first:last] = [home.name] * (last - first)
                sent_back.update(dict.fromkeys(range(first, last), why))
    stretches = tuple(
        Stretch(unit, start, stop, _reason(plan, candidates, fallback, unit, start, stop, sent_back, rules))
        for unit, start, stop in _stretches(units)
    )
    return Assignment(tuple(units), stretches)


def _crossing_bytes(plan: Plan, tokens: int) -> list[int]:
    """Before each node, the bytes of values that are made before it and read from it on; the step's inputs are wherever they are read."""
    made = {value: i for i, node in enumerate(plan.nodes) for value in node.outputs}
    last = {value: i for i, node in enumerate(plan.nodes) for value in node.inputs if value in made}
    change = [0] * (len(plan.nodes) + 1)
    for value, until in last.items():
        size = value_bytes(plan, value, tokens)
        change[made[value] + 1] += size
        change[until + 1] -= size
    total, crossing = 0, []
    for i in range(len(plan.nodes)):
        total += change[i]
        crossing.append(total)
    return crossing


def _cheapest(candidates: Sequence[Candidate], crossing: Sequence[int], rules: PlacingRules) -> list[int]:
    """The candidate of each node, -1 where none takes it."""
    states = range(len(candidates))
    best = [0.0 if state == 0 else candidates[state].model.call_seconds for state in states]
    back: list[list[int]] = []
    open_start = True
    for i, nbytes in enumerate(crossing):
        taken = [not one.refusals[i] for one in candidates]
        if not any(taken):
            # Whoever comes after starts anew: the fallback gets and gives all values in any case.
            cheapest = min(states, key=best.__getitem__)
            back.append([cheapest] * len(candidates))
            best = [best[cheapest] + candidates[state].model.call_seconds for state in states]
            open_start = True
            continue
        entry, came = [], []
        for state in states:
            own = candidates[state].model
            moves = [0.0 if open_start else rules.transfer(nbytes, candidates[old].model, own) for old in states]
            costs = [best[old] + (0.0 if old == state else moves[old] + own.call_seconds) for old in states]
            cheapest = min(states, key=lambda old: (costs[old], old != state))
            entry.append(costs[cheapest] + candidates[state].seconds[i] if taken[state] else inf)
            came.append(cheapest)
        best, open_start = entry, False
        back.append(came)
    state = min(states, key=best.__getitem__)
    chosen = []
    for i in reversed(range(len(crossing))):
        chosen.append(state if any(not one.refusals[i] for one in candidates) else -1)
        state = back[i][state]
    return chosen[::-1]


def _stretches(units: Sequence[str]) -> list[tuple[str, int, int]]:
    found, start = [], 0
    for unit, group in groupby(units):
        stop = start + len(list(group))
        found.append((unit, start, stop))
        start = stop
    return found


def _free_parts(home: Candidate, start: int, stop: int) -> list[tuple[int, int]]:
    """Of a stretch away from home, what need not be: all of it, or what stands before and behind the nodes that home does not take."""
    bound = [i for i in range(start, stop) if home.refusals[i]]
    if not bound:
        return [(start, stop)]
    return [(first, last) for first, last in ((start, bound[0]), (bound[-1] + 1, stop)) if first < last]


def _border_bytes(plan: Plan, start: int, stop: int, tokens: int) -> int:
    nodes = plan.nodes[start:stop]
    made = {value for node in nodes for value in node.outputs}
    read = {v for node in nodes for v in node.inputs if v >= 0 and plan.values[v].kind == "node" and v not in made}
    later = {v for node in plan.nodes[stop:] for v in node.inputs} | set(plan.outputs)
    return sum(value_bytes(plan, value, tokens) for value in read | (made & later))


def _too_small(plan: Plan, home: Candidate, unit: str, start: int, stop: int, rules: PlacingRules) -> str:
    compute, border = sum(home.seconds[start:stop]), _border_bytes(plan, start, stop, rules.tokens)
    if compute <= rules.move_above:
        return f"{unit} would take it, but its {_time(compute)} of compute is not over {_time(rules.move_above)}"
    if border >= rules.boundary_below:
        return f"{unit} would take it, but the {border:,} bytes at its borders are not below {rules.boundary_below:,.0f}"
    return ""


def _reason(
    plan: Plan,
    candidates: Sequence[Candidate],
    fallback: str,
    unit: str,
    start: int,
    stop: int,
    sent_back: Mapping[int, str],
    rules: PlacingRules,
) -> str:
    home = candidates[0]
    refused = dict.fromkeys(f"{one.name}: {why}" for one in candidates if one.name != unit for why in one.refusals[start:stop] if why)
    if unit == fallback and all(unit != one.name for one in candidates):
        return "; ".join(refused)
    own = next(one for one in candidates if one.name == unit)
    border = _border_bytes(plan, start, stop, rules.tokens)
    if unit != home.name:
        here, there = sum(home.seconds[start:stop]), sum(own.seconds[start:stop]) + own.model.call_seconds
        if any(home.refusals[start:stop]):
            return f"moved, since {next(iter(refused))}"
        moving = rules.transfer(border, home.model, own.model)
        return (
            f"moved: {_time(here)} on {home.name} against {_time(there)} here and {_time(moving)} to hand over {border:,} bytes, "
            f"in a step of {rules.tokens} tokens"
        )
    back = dict.fromkeys(why for i, why in sent_back.items() if start <= i < stop)
    if back or refused:
        return "; ".join([*back, *refused])
    others = [(sum(one.seconds[start:stop]) + one.model.call_seconds, one) for one in candidates[1:]]
    there, other = min(others, key=lambda pair: pair[0])
    return (
        f"stays: {_time(sum(own.seconds[start:stop]))} here against {_time(there)} on {other.name} and "
        f"{_time(2 * rules.transfer(border, own.model, other.model))} of transfers, in a step of {rules.tokens} tokens"
    )


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:,.2f} ms"
