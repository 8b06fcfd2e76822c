"""Seconds of each node on each unit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mixplan.compiler.placing.rules import PlacingRules
from mixplan.runtime.cost import Limits, limit_seconds, node_cost
from mixplan.runtime.errors import OptionError
from mixplan.runtime.kv_format import KvFormat
from mixplan.runtime.plan import Node, Plan
from mixplan.targets.base import CostedTarget, CostModel, Target

__all__ = ["cost_models", "unit_seconds"]

_PRODUCTS = ("linear", "gated_linear", "grouped_linear")


def cost_models(targets: Sequence[Target], rules: PlacingRules) -> dict[str, CostModel]:
    """What the user states of each unit, or what its target says. OptionError where neither says anything, or a unit is not among them."""
    strangers = set(rules.costs) - {target.name for target in targets}
    if strangers:
        raise OptionError(f"unit_costs names {', '.join(sorted(strangers))}; the targets are {', '.join(t.name for t in targets)}.")
    models: dict[str, CostModel] = {}
    for target in targets:
        if target.name in rules.costs:
            models[target.name] = rules.costs[target.name]
        elif isinstance(target, CostedTarget):
            models[target.name] = target.cost_model()
        else:
            raise OptionError(
                f"The target {target.name!r} says nothing of what its work costs, so nothing can be weighed against it.",
                hint=f"State it: --unit-cost {target.name}:int8=40TOPS,f32=1TFLOPS,bandwidth=60GB/s.",
            )
    return models


def unit_seconds(plan: Plan, model: CostModel, rules: PlacingRules) -> list[float]:
    """Seconds of each node of the plan, at least (see runtime/cost/roofline.py)."""
    limits = Limits(bandwidth=lambda _: model.bandwidth, int8=model.int8, bf16=model.bf16 or model.f32, f32=model.f32)
    seconds = []
    for node in plan.nodes:
        cost = node_cost(plan, node, rules.work)
        if model.narrow and _is_narrow(plan, node):
            cost = replace(cost, bf16_ops=cost.bf16_ops + cost.f32_ops, f32_ops=0)
        # A node that moves and computes nothing is another name for the same memory.
        seconds.append(max(limit_seconds(cost, limits), model.node_seconds) if cost.bytes or cost.ops else 0.0)
    return seconds


def _is_narrow(plan: Plan, node: Node) -> bool:
    """Whether a product has a factor that is stored in fewer than 32 bits."""
    if node.op == "attention":
        return all(held is not KvFormat.f32 for held, _ in plan.attention[int(str(node.attrs["layer"]))].runs)
    return node.op in _PRODUCTS and node.attrs.get("format") != "f32"
