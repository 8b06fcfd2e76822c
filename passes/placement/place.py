"""Each node goes to the preferred target where that supports it, and to the fallback where it does not."""

from __future__ import annotations

from collections import Counter

from torch import fx

from mixplan.passes.base import FunctionPass, PassContext, PassResult, Placement
from mixplan.passes.patterns import is_constant, mark_constants, source_line

__all__ = ["PLACE", "TARGET", "placement_summary"]

TARGET = "target"
"""Key of the target's name in a node's meta."""


def _run(graph: fx.GraphModule, context: PassContext) -> PassResult:
    mark_constants(graph.graph)
    options = context.options
    context.placements.clear()
    placed = 0
    for node in graph.graph.nodes:
        if node.op != "call_function" or is_constant(node):
            continue
        support = context.supports(node) if context.supports is not None else None
        refused = support is not None and not support.ok
        node.meta[TARGET] = options.fallback if refused else options.target
        placed += 1
        if refused and support is not None:
            context.placements.append(Placement(node.name, str(node.target), options.fallback, support.reason))
            context.rejections.add("place", node.name, f"not on {options.target}: {support.reason}", source_line(node))
    return PassResult(graph, placed > 0, placed)


def placement_summary(context: PassContext) -> list[str]:
    """One line for each op and reason that keeps nodes off the preferred target, most frequent first."""
    counts = Counter((placement.op, placement.target, placement.reason) for placement in context.placements)
    return [f"{count} x {op} on {target}: {reason}" for (op, target, reason), count in counts.most_common()]


PLACE = FunctionPass("place", "placement", "the target of every node", _run)
