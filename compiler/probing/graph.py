"""The graph that a probe looks at: canonical, with norms and rotary embeddings as single nodes, and every layer still apart."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from torch import fx

from mixplan.compiler.frontends.base import Captured
from mixplan.passes.base import PassContext, PassOptions
from mixplan.passes.fx_ops import ATTENTION_TM
from mixplan.passes.manager import PassManager
from mixplan.passes.patterns import aten, dims, dtype_of, is_constant, mark_constants
from mixplan.passes.pipeline import LEVELS, default_passes
from mixplan.passes.precision.layers import Layer, layer_name, layers_of
from mixplan.passes.precision.schemes import parse_scheme

__all__ = ["MOVES", "probe_graph", "source_of", "tensor_names"]

_FUSED = ("fuse_norms", "fuse_rope")

MOVES = frozenset(
    {
        aten.reshape.default,
        aten.view.default,
        aten.permute.default,
        aten.transpose.int,
        aten.slice.Tensor,
        aten.select.int,
        aten.expand.default,
        aten.contiguous.default,
        aten.clone.default,
        aten.index_select.default,
        aten.to.dtype,
        aten.squeeze.dim,
        aten.unsqueeze.default,
        operator.getitem,
    }
)
"""Ops that only move data: they repeat the figures of what they move."""


def probe_graph(captured: Captured) -> tuple[fx.GraphModule, list[Layer]]:
    """The graph and its layers. The captured graph is rewritten in place."""
    options = PassOptions(parse_scheme("FP32"))
    passes = [one for one in default_passes(options) if one.stage in ("canonicalize", "precision") or one.name in _FUSED]
    graph = PassManager(passes, LEVELS).run(captured.graph, PassContext(options, captured.tied)).graph
    return graph, layers_of(graph, captured.tied)


def source_of(node: Any) -> Any:
    """The node that made a value, behind what only moved it."""
    while isinstance(node, fx.Node) and node.op == "call_function" and node.target in MOVES:
        node = node.args[0]
    return node


def tensor_names(module: fx.GraphModule, layers: list[Layer]) -> dict[fx.Node, str]:
    """A name for every floating-point value that depends on the tokens and is computed, in graph order.

    A layer's output is "LAYER", what is computed after it "LAYER / op", or "MODULE / op" where the model's module is known.
    """
    mark_constants(module.graph)
    owners = {node: layer.name for layer in layers for node in layer.nodes}
    found: dict[fx.Node, str] = {}
    used: dict[str, int] = {}
    fed = _fed_by_tokens(module)
    for node in module.graph.nodes:
        if node not in fed or node.op != "call_function" or node.target in MOVES:
            continue
        dtype = dtype_of(node)
        if dtype is None or not dtype.is_floating_point or not dims(node):
            continue
        name = owners[node] if node in owners else _computed_name(node, found)
        used[name] = used.get(name, 0) + 1
        found[node] = name if used[name] == 1 else f"{name} ({used[name]})"
    return found


def _fed_by_tokens(module: fx.GraphModule) -> set[fx.Node]:
    """Nodes whose value depends on the tokens, not on their positions alone."""
    fed: set[fx.Node] = set()
    for node in module.graph.nodes:
        if (node.op == "placeholder" and node.target == "token_ids") or any(source in fed for source in node.all_input_nodes):
            fed.add(node)
    return fed


def _computed_name(node: fx.Node, named: Mapping[fx.Node, str]) -> str:
    op = str(getattr(getattr(node.target, "overloadpacket", node.target), "__name__", node.target))
    if node.target is ATTENTION_TM:
        return f"attention.{node.args[4]}"
    weights = [source for source in node.all_input_nodes if source.op == "get_attr" and is_constant(source)]
    if weights and op.endswith("norm"):
        return layer_name(str(weights[0].target))
    stack = node.meta.get("nn_module_stack")
    if stack:
        path = str(list(stack.values())[-1][0]).removeprefix("model_.")
        return f"{path} / {op}"
    source = source_of(node.args[0]) if node.args else None
    before = named.get(source, "") if isinstance(source, fx.Node) else ""
    return f"{before.split(' / ')[0]} / {op}" if before else str(node.meta.get("origin") or node.name)
