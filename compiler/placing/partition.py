"""Cuts the plan's nodes into regions of several units, by cost."""

from __future__ import annotations

from collections.abc import Sequence

from mixplan.compiler.partition import FALLBACK, Partition, cut_regions, supports
from mixplan.compiler.placing.assign import Candidate, assign
from mixplan.compiler.placing.costs import cost_models, unit_seconds
from mixplan.compiler.placing.rules import PlacingRules
from mixplan.runtime.plan import Plan
from mixplan.targets.base import CostModel, Target

__all__ = ["partition_mixed"]


def partition_mixed(plan: Plan, targets: Sequence[Target], rules: PlacingRules) -> Partition:
    """Regions over the nodes of `plan`, which has none yet, in their order. The first target is where small work stays.

    Every region has its reason; a node that a unit does not take has it among the notes.
    """
    models = cost_models(targets, rules)
    candidates = []
    for target in targets:
        answers = [supports(target, node, plan.values) for node in plan.nodes]
        refusals = ["" if answer.ok else answer.reason or "not supported" for answer in answers]
        candidates.append(Candidate(target.name, models[target.name], unit_seconds(plan, models[target.name], rules), refusals))
    chosen = assign(plan, candidates, FALLBACK, rules)
    nodes = list(plan.nodes)
    runs = [(stretch.unit, stretch.start, stretch.stop) for stretch in chosen.stretches]
    regions = cut_regions(plan.values, nodes, plan.outputs, runs, [stretch.reason for stretch in chosen.stretches])
    refused = [
        (node.name, node.op, "; ".join(f"{one.name}: {one.refusals[i]}" for one in candidates))
        for i, node in enumerate(nodes)
        if all(one.refusals[i] for one in candidates)
    ]
    notes = tuple(
        f"place: {node.name}: not on {one.name}: {one.refusals[i]}" for i, node in enumerate(nodes) for one in candidates if one.refusals[i]
    )
    return Partition(nodes, regions, refused, notes, {"costs": "; ".join(_told(name, models[name]) for name in models)})


def _told(name: str, model: CostModel) -> str:
    """What a unit's work was taken to cost, without the time at which that was measured."""
    rates = [(model.int8, "int8"), (model.bf16, "bf16"), (model.f32, "f32")]
    spans = [(model.call_seconds, "call"), (model.node_seconds, "node")]
    facts = [f"{model.bandwidth / 1e9:,.4g} GB/s", *(f"{rate / 1e12:,.4g} TOPS {kind}" for rate, kind in rates if rate)]
    facts += [f"{seconds * 1e6:,.4g} us a {what}" for seconds, what in spans if seconds]
    source = "measured" if model.source.startswith("measured") else model.source or "stated"
    return f"{name}: {', '.join(facts)} ({source})"
