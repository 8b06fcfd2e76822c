"""Common subexpressions: of two equal calls on equal inputs, the later one goes. Nodes that nothing uses go as well."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from mixplan.passes.base import FunctionPass, PassContext, PassResult, Stage
from mixplan.passes.decision import DECISION
from mixplan.passes.rewriting import Rewriter

__all__ = ["common_pass", "eliminate_common", "eliminate_dead"]


def eliminate_common(graph: fx.GraphModule, context: PassContext) -> PassResult:
    """Merge equal pure calls, in order, so that chains of equal calls merge in one sweep."""
    edit = Rewriter(graph, "cse")
    seen: dict[Any, fx.Node] = {}
    count = 0
    for node in list(graph.graph.nodes):
        if node._erased:
            continue
        if node.op == "get_attr":
            key: Any = ("get_attr", node.target)
        elif node.op == "call_function" and _is_pure(node):
            key = (node.target, _frozen(node.args), _frozen(node.kwargs), node.meta.get(DECISION))
        else:
            continue
        first = seen.setdefault(key, node)
        if first is not node:
            edit.replace(node, first)
            count += 1
    return PassResult(graph, count > 0, count)


def eliminate_dead(graph: fx.GraphModule, context: PassContext) -> PassResult:
    """Erase calls and tensor reads that nothing uses; the step's inputs stay."""
    count = 0
    for node in reversed(list(graph.graph.nodes)):
        if not node.users and (node.op == "get_attr" or (node.op == "call_function" and _is_pure(node))):
            graph.graph.erase_node(node)
            count += 1
    return PassResult(graph, count > 0, count)


def _is_pure(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    tags = getattr(node.target, "tags", ())
    return not (schema is not None and schema.is_mutable) and torch.Tag.nondeterministic_seeded not in tags


def _frozen(value: Any) -> Any:
    """A hashable stand-in for arguments. Numbers carry their type, since 1 == 1.0 == True."""
    if isinstance(value, (list, tuple)):
        return tuple(_frozen(item) for item in value)
    if isinstance(value, dict):
        return tuple(sorted((name, _frozen(item)) for name, item in value.items()))
    if isinstance(value, (bool, int, float)):
        return (type(value), repr(value))
    return value if isinstance(value, (fx.Node, str, torch.dtype, type(None))) else (type(value), str(value))


def common_pass(name: str, stage: Stage) -> FunctionPass:
    """Common subexpressions and dead code as one pass, which a pipeline may hold more than once under different names."""

    def run(graph: fx.GraphModule, context: PassContext) -> PassResult:
        common, dead = eliminate_common(graph, context), eliminate_dead(graph, context)
        return PassResult(graph, common.changed or dead.changed, common.matches + dead.matches)

    return FunctionPass(name, stage, "of equal calls on equal inputs one; what nothing uses goes", run)
