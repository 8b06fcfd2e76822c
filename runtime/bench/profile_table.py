"""A step's profile, summed by kernel, by region and by kind of layer, with rates and shares of the ceiling."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from mixplan.runtime.bench.attribution import OpProfile, StepProfile
from mixplan.runtime.cost import Cost, Limits, Work, limit_seconds, plan_cost
from mixplan.runtime.plan import Node, Plan

__all__ = ["GROUPINGS", "kernel_name", "layer_name", "profile_to_dict"]

_PRODUCTS = ("linear", "linear_q", "gated_linear", "gated_linear_q", "grouped_linear")


def kernel_name(plan: Plan, op: OpProfile) -> str:
    """The op and, of products, the weight's format."""
    if not op.nodes:
        return f"region on {plan.regions[op.region].device}"
    node = plan.nodes[op.nodes[0]]
    return " ".join(filter(None, [node.op, str(node.attrs.get("format", ""))]))


def layer_name(plan: Plan, op: OpProfile) -> str:
    """The layer whose weight the op reads, its number left out ("layers.*.mlp.down_proj"); "head" for the last product; or else the op."""
    for index in op.nodes[:1]:
        node = plan.nodes[index]
        if node.op in _PRODUCTS and node.attrs.get("rows") == plan.model.vocab_size:
            return "head"
        weight = _weight(plan, node)
        if weight:
            parts = weight.removesuffix(".weight").removeprefix("model.").split(".")
            return ".".join("*" if part.isdigit() else part for part in parts)
        return node.op
    return "all"


def _weight(plan: Plan, node: Node) -> str:
    """The name of the constant called "....weight" that the node reads; that of merged weights ends in the number merged into it."""
    for value in (plan.values[index] for index in node.inputs if index >= 0):
        match = re.fullmatch(r"(.*\.weight)(\+\d+)?", value.name)
        if value.kind == "const" and match:
            return match[1] if match[2] is None else f"{match[1].removesuffix('.weight')}{match[2]}"
    return ""


GROUPINGS: dict[str, Callable[[Plan, OpProfile], str]] = {
    "kernel": kernel_name,
    "layer": layer_name,
    "region": lambda plan, op: plan.regions[op.region].name,
}


def profile_to_dict(plan: Plan, profile: StepProfile, limits: Limits | None) -> dict[str, Any]:
    """The profile as plain data. Times in seconds, rates in bytes and operations a second; shares are of native time, and of the ceiling.

    limits: None leaves the shares of the ceiling out. The limit of a group is the sum of its ops' limits.
    """
    total = profile.cost
    data: dict[str, Any] = {
        "name": profile.name,
        "tokens": profile.tokens,
        "repetitions": profile.steps,
        "seconds": profile.wall,
        "native_seconds": profile.native,
        "overhead_seconds": profile.overhead,
        **_rates(total, profile.native),
        **_limit(total, profile.wall, limits, total.memory_bytes),
    }
    if profile.loop is not None:
        loop, cost = profile.loop, plan_cost(plan, Work.decode(profile.loop.context))
        data["loop"] = {
            "context": loop.context,
            "seconds": loop.seconds,
            "native_seconds": loop.native,
            "overhead_seconds": loop.overhead,
            **_limit(cost, loop.seconds, limits, cost.memory_bytes),
        }
    for grouping, name_of in GROUPINGS.items():
        groups: dict[str, list[OpProfile]] = {}
        for op in profile.ops:
            groups.setdefault(name_of(plan, op), []).append(op)
        rows = [_group(name, ops, profile, limits) for name, ops in groups.items()]
        data[f"by_{grouping}"] = sorted(rows, key=lambda row: row["seconds"], reverse=True)
    return data


def _group(name: str, ops: list[OpProfile], profile: StepProfile, limits: Limits | None) -> dict[str, Any]:
    seconds = sum(op.seconds for op in ops)
    cost = sum((op.cost for op in ops), Cost())
    row = {"name": name, "ops": len(ops), "seconds": seconds, "share": seconds / profile.native if profile.native else 0.0}
    row |= _rates(cost, seconds)
    if limits is not None:
        working_set = profile.cost.memory_bytes
        least = sum(limit_seconds(op.cost, limits, working_set) for op in ops)
        row |= {"limit_seconds": least, "share_of_ceiling": least / seconds if seconds else None}
    return row


def _limit(cost: Cost, seconds: float, limits: Limits | None, working_set: int) -> dict[str, Any]:
    if limits is None:
        return {}
    least = limit_seconds(cost, limits, working_set)
    bandwidth = limits.bandwidth(working_set) if working_set else None
    return {"limit_seconds": least, "limit_bandwidth": bandwidth, "share_of_ceiling": least / seconds if seconds else None}


def _rates(cost: Cost, seconds: float) -> dict[str, Any]:
    rates = {"bytes_per_second": cost.bytes / seconds, "ops_per_second": cost.ops / seconds} if seconds else {}
    return {"cost": asdict(cost), "bytes": cost.bytes, "operations": cost.ops, **rates}
