"""What a scheme costs a group: bits, bytes, and seconds of a step.

Bits and bytes are exact: what the plan will count and store. Seconds are those of the group's own nodes on the roofline of the nominal
machine (runtime/hardware/nominal.py), so that a plan is the same wherever it is compiled; or measured on this machine's own kernels, where
a latency is promised (see rates.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from mixplan.compiler.draft import Draft
from mixplan.compiler.search.attention import AttentionKind
from mixplan.compiler.search.groups import LayerGroup
from mixplan.compiler.search.solver import Axis, Option, Problem
from mixplan.passes.precision.schemes import Scheme, parse_scheme
from mixplan.runtime.cost import Cost, Work, limit_seconds, node_cost, record_limits
from mixplan.runtime.hardware import NOMINAL

__all__ = ["PROBE", "Kind", "Rates", "StepCosts", "group_kind", "make_problem"]

PROBE = parse_scheme("W8A8")
"""The scheme of the draft that groups and costs are read off."""

_NOMINAL = record_limits(NOMINAL)

Kind: TypeAlias = tuple[tuple[str, ...], tuple[tuple[int, int, int], ...]]
"""Ops and weight shapes of a group: groups of one kind take equally long in one scheme."""


def group_kind(group: LayerGroup) -> Kind:
    """The group's kind. Ops are named without the form that int8 activations give them."""
    ops = sorted({op.removesuffix("_q") for op in group.ops})
    return tuple(ops), tuple((weight.rows, weight.columns, weight.copies) for weight in group.weights)


@dataclass(frozen=True)
class Rates:
    """Measured on this machine. seconds: of a group by kind and scheme. speed: bytes of weight a second, by scheme. attention: seconds of
    an attention layer by kind and choice, where attention is searched. rest: seconds of what is in no group."""

    seconds: Mapping[tuple[Kind, str], float] = field(default_factory=dict)
    speed: Mapping[str, float] = field(default_factory=dict)
    attention: Mapping[tuple[AttentionKind, str], float] = field(default_factory=dict)
    rest: float = 0.0


class StepCosts:
    """Predicts seconds of a step of shape `work`. `draft` has the scheme PROBE everywhere."""

    def __init__(self, draft: Draft, work: Work, rates: Rates | None = None) -> None:
        self._plan = draft.plan
        self._work = work
        self._rates = rates

    def seconds(self, group: LayerGroup, scheme: Scheme) -> float:
        """Of the group's nodes under a scheme."""
        cost = self._cost(group)
        moved = round(cost.weight_bytes * group.nbytes(scheme.weight) / max(group.nbytes(PROBE.weight), 1))
        if self._rates is not None:
            known = self._rates.seconds.get((group_kind(group), str(scheme)))
            return known if known is not None else moved / self._rates.speed[str(scheme)]
        products = cost.int8_ops
        if scheme.activation == "i8":
            return limit_seconds(Cost(moved, int8_ops=products, f32_ops=cost.f32_ops), _NOMINAL)
        if scheme.activation == "bf16":
            return limit_seconds(Cost(moved, bf16_ops=products, f32_ops=cost.f32_ops), _NOMINAL)
        return limit_seconds(Cost(moved, f32_ops=products + cost.f32_ops), _NOMINAL)

    def rest(self, groups: Sequence[LayerGroup]) -> float:
        """Of all nodes that are in no group."""
        if self._rates is not None:
            return self._rates.rest
        mine = {node for group in groups for node in group.nodes}
        nodes = (node for number, node in enumerate(self._plan.nodes) if number not in mine)
        return limit_seconds(sum((node_cost(self._plan, node, self._work) for node in nodes), Cost()), _NOMINAL)

    def _cost(self, group: LayerGroup) -> Cost:
        return sum((node_cost(self._plan, self._plan.nodes[node], self._work) for node in group.nodes), Cost())


def make_problem(
    groups: Sequence[LayerGroup],
    options: Sequence[Sequence[Scheme]],
    loss: Mapping[tuple[str, str], float],
    draft: Draft,
    costs: StepCosts,
    extra_bytes: int = 0,
    attention: Sequence[tuple[Option, ...]] = (),
) -> Problem:
    """All options with their costs. loss: by (group's name, scheme). extra_bytes: what the plan's directory holds besides weights.
    attention: options of attention layers, which stand after those of the groups."""
    table = tuple(
        tuple(
            Option(
                scheme,
                loss[group.name, str(scheme)],
                float(group.bits(scheme.weight)),
                float(group.nbytes(scheme.weight)),
                costs.seconds(group, scheme),
            )
            for scheme in schemes
        )
        for group, schemes in zip(groups, options, strict=True)
    )
    fixed: dict[Axis, float] = {
        "bits": draft.bits.stored - sum(group.bits(PROBE.weight) for group in groups),
        "size": draft.layout.nbytes - sum(group.nbytes(PROBE.weight) for group in groups) + extra_bytes,
        "seconds": costs.rest(groups),
    }
    return Problem((*table, *attention), draft.bits.parameters, fixed)
