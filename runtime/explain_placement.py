"""What `mixplan explain --placement` shows: why each region and each node of a plan is where it is. No native code is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mixplan.runtime.plan import Plan
from mixplan.runtime.plan_io import read_plan

__all__ = ["explain_placement", "placement_notes"]

_MARK = "place: "


def explain_placement(path: Path) -> dict[str, Any]:
    """`regions`: name, device, nodes and reason. `nodes`: each node with its op, region, device, and what keeps it from other units, or its
    region's reason. `costs`: what each unit was taken to cost, where units were weighed."""
    with read_plan(path, verify="manifest") as loaded:
        plan = loaded.plan
    notes = placement_notes(plan)
    regions = [
        {
            "region": region.name,
            "device": region.device,
            "nodes": region.stop - region.start,
            "reason": region.reason or _only(plan, region.device),
        }
        for region in plan.regions
    ]
    nodes = [
        {
            "node": node.name,
            "op": node.op,
            "region": region.name,
            "device": region.device,
            "reason": "; ".join(notes.get(node.name, ())) or region.reason or _only(plan, region.device),
        }
        for region in plan.regions
        for node in plan.nodes[region.start : region.stop]
    ]
    costs = [text for text in plan.provenance.options.get("costs", "").split("; ") if text]
    return {"plan": plan.name, "options": plan.provenance.options, "costs": costs, "regions": regions, "nodes": nodes}


def placement_notes(plan: Plan) -> dict[str, list[str]]:
    """What keeps nodes from a unit, by node."""
    notes: dict[str, list[str]] = {}
    for text in plan.rejections:
        if text.startswith(_MARK):
            node, _, why = text.removeprefix(_MARK).partition(": ")
            notes.setdefault(node, []).append(why)
    return notes


def _only(plan: Plan, device: str) -> str:
    targets = plan.provenance.options.get("targets", device)
    return f"the first of the targets ({targets}) that takes it"
