"""Which op did which node's work, and so what each op moved and computed in its time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from mixplan.runtime.cost import Cost, Work, node_cost
from mixplan.runtime.metrics import OpTime
from mixplan.runtime.plan import Plan

__all__ = ["LoopProfile", "OpProfile", "StepProfile", "attribute"]


@dataclass(frozen=True)
class OpProfile:
    """One op in one kind of step: nodes that it does the work of (its own first), seconds in a step, and what these nodes cost.

    region: index into the plan's regions. nodes: indices into the plan's; () for a whole region that keeps no times of ops.
    """

    region: int
    nodes: tuple[int, ...]
    seconds: float
    cost: Cost


@dataclass(frozen=True)
class LoopProfile:
    """The whole generation loop, for each token: seconds, seconds in native ops, and the context that it had in the middle."""

    seconds: float
    native: float
    context: int

    @property
    def overhead(self) -> float:
        """Seconds outside of ops: Python, scheduling, and waking the threads."""
        return self.seconds - self.native


@dataclass(frozen=True)
class StepProfile:
    """A kind of step, averaged over `steps` of them. wall: seconds in Model.step. loop: None where that was not measured.

    `tokens` of a prefill may be cut into several steps; the figures are of them together.
    """

    name: str
    tokens: int
    steps: int
    wall: float
    ops: tuple[OpProfile, ...]
    loop: LoopProfile | None = None

    @property
    def native(self) -> float:
        """Seconds in ops."""
        return sum(op.seconds for op in self.ops)

    @property
    def overhead(self) -> float:
        """Seconds of Model.step outside of ops: Python, and waking the threads."""
        return self.wall - self.native

    @property
    def cost(self) -> Cost:
        """Of all ops."""
        return sum((op.cost for op in self.ops), Cost())


def attribute(plan: Plan, times: Sequence[OpTime], seconds: Sequence[float], works: Sequence[Work]) -> tuple[OpProfile, ...]:
    """Each node's cost to the op that did its work: its own, or else the next one of its region that took time, or the last."""
    found = []
    for number, region in enumerate(plan.regions):
        mine = [(time.node, taken) for time, taken in zip(times, seconds, strict=True) if time.region == number and taken > 0]
        if not mine:
            continue
        spent: dict[int, float] = {}
        for node, taken in mine:
            spent[node] = spent.get(node, 0.0) + taken
        members: dict[int, list[int]] = {node: [] for node in spent}
        owners = sorted(spent)
        for index in range(region.start, region.stop):
            members[owners[min(bisect_left(owners, index), len(owners) - 1)]].append(index)
        for owner, nodes in members.items():
            cost = sum((node_cost(plan, plan.nodes[index], work) for index in nodes for work in works), Cost())
            ordered = () if owner < 0 else (owner, *(index for index in nodes if index != owner))
            found.append(OpProfile(number, ordered, spent[owner], cost))
    return tuple(found)
