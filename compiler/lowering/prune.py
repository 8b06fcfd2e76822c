"""Dead code removed and values numbered in the order in which the plan's nodes meet them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mixplan.compiler.lowering.builder import Builder, Source
from mixplan.runtime.plan import Node, Value

__all__ = ["prune"]


def prune(build: Builder, outputs: Sequence[int]) -> tuple[list[Value], list[Node], tuple[int, ...], dict[int, Source]]:
    """Values, nodes, outputs and sources of what the outputs need.

    Inputs come first in their order; then, node by node, the constants that a node is the first to read, and its outputs.
    """
    needed = set(outputs)
    kept: list[Node] = []
    for node in reversed(build.nodes):
        if needed.intersection(node.outputs):
            needed.update(i for i in node.inputs if i >= 0)
            kept.append(node)
    kept.reverse()
    order = [i for i, value in enumerate(build.values) if value.kind == "input" and i in needed]
    seen = set(order)

    def meet(indices: Sequence[int]) -> None:
        for i in indices:
            if i >= 0 and i not in seen:
                seen.add(i)
                order.append(i)

    for node in kept:
        meet(node.inputs)
        meet(node.outputs)
    meet(outputs)
    place = {old: new for new, old in enumerate(order)}
    place[-1] = -1
    nodes = [
        msgspec.structs.replace(node, inputs=tuple(place[i] for i in node.inputs), outputs=tuple(place[i] for i in node.outputs))
        for node in kept
    ]
    sources = {place[i]: source for i, source in build.sources.items() if i in place}
    return [build.values[i] for i in order], nodes, tuple(place[i] for i in outputs), dict(sorted(sources.items()))
