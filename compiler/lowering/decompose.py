"""Ops without a lowering, taken apart by torch's own decompositions, one at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._decomp import get_decompositions
from torch.fx.experimental.proxy_tensor import make_fx

__all__ = ["decompose"]


def decompose(node: fx.Node) -> tuple[fx.GraphModule, list[fx.Node]] | None:
    """A graph that computes the node from its tensor arguments, and these arguments in the order of the graph's placeholders.

    None where torch has no decomposition of the op.
    """
    target: Any = node.target
    table = get_decompositions([target])
    composite = target in table or torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), "CompositeImplicitAutograd")
    if not composite:
        return None
    inputs = [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), torch.Tensor)]

    def run(*tensors: torch.Tensor) -> Any:
        given = dict(zip(inputs, tensors, strict=True))

        def resolve(n: fx.Node) -> Any:
            return given[n] if n in given else n.meta["val"]

        args, kwargs = fx.map_arg((node.args, node.kwargs), resolve)
        function = table.get(target, target.decompose if target not in table else target)
        return function(*args, **kwargs)

    graph = make_fx(run, decomposition_table=table)(*(n.meta["val"] for n in inputs))
    trace = node.meta.get("stack_trace")
    for inner in graph.graph.nodes:
        if trace:
            inner.meta["stack_trace"] = trace
    if any(inner.target is target for inner in graph.graph.nodes):
        return None
    return graph, inputs
