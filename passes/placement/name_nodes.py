"""Names for the nodes of the finished graph, as the plan and its reports show them: layers by their own names, others by op and number."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from torch import fx

from mixplan.passes.base import FunctionPass, PassContext, PassResult
from mixplan.passes.decision import decision_of

__all__ = ["NAME_NODES"]


def _run(graph: fx.GraphModule, context: PassContext) -> PassResult:
    calls = [node for node in graph.graph.nodes if node.op == "call_function"]
    wanted = [_wanted(node) for node in calls]
    total = Counter(wanted)
    taken = {node.name for node in graph.graph.nodes if node.op != "call_function"}
    seen: Counter[str] = Counter()
    renamed: dict[str, str] = {}
    for node, base in zip(calls, wanted, strict=True):
        name = base if total[base] == 1 else f"{base}_{seen[base]}"
        seen[base] += 1
        while name in taken:
            name += "_"
        taken.add(name)
        if node.name != name:
            renamed[node.name] = name
    for node in calls:
        node.name = renamed.get(node.name, node.name)
    context.rejections.rename(renamed)
    context.placements[:] = [replace(one, node=renamed.get(one.node, one.node)) for one in context.placements]
    return PassResult(graph, bool(renamed), len(renamed))


def _wanted(node: fx.Node) -> str:
    decision = decision_of(node)
    if decision is not None:
        return layers_as_identifier(decision.layer)
    packet = getattr(node.target, "overloadpacket", node.target)
    return str(getattr(packet, "__name__", packet))


def layers_as_identifier(layers: str) -> str:
    """ "a.b.q_proj + a.b.k_proj" as "a_b_q_proj_k_proj": what all layers share is named once."""
    first, *others = (name.split(".") for name in layers.split(" + "))
    parts = list(first)
    for other in others:
        shared = 0
        while shared < min(len(first), len(other)) - 1 and first[shared] == other[shared]:
            shared += 1
        parts += other[shared:]
    return "_".join(parts)


NAME_NODES = FunctionPass("name_nodes", "placement", "layers by their own names, other nodes by op and number", _run)
