"""Experts: a product with each one's weight, of which every token then takes those that it chose.

All experts are multiplied, whatever the tokens choose. The shapes are static so, which an NPU needs; a weight stays a DequantizeLinear
before a MatMul, which providers make one product with integers of; and it is the same graph for one token and for many. Gathering the
chosen weights instead would read less where a step has one token, but as dequantized copies of several times the bytes, and for a prompt it
would hold one weight for every token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mixplan.runtime.devices.npu_weights import node_weights
from mixplan.runtime.plan import Node, Shape, Sym
from mixplan.targets.npu.lower.base import Lowering, attrs_of
from mixplan.targets.npu.lower.weights import product

if TYPE_CHECKING:
    from mixplan.targets.npu.graph import Graph

__all__ = ["GROUPED_LINEAR"]


def _emit(g: Graph, node: Node) -> None:
    x, ids, shape = g.value(node.inputs[0]), g.value(node.inputs[1]), g.shape(node.inputs[0])
    tokens, chosen = g.shape(node.inputs[1])
    experts, rows, columns = (int(attrs_of(node)[name]) for name in ("experts", "rows", "columns"))
    routed = _is_choice(g, node.inputs[1], experts)
    if g.dtype(node.inputs[1]).value != "i64":
        ids = g.cast(ids, "i64")
    places = ids if routed else g.op("Min", ids, g.integers([experts - 1]))
    if shape[1] == 1:
        made = _each(g, node, [g.reshape(x, (tokens, columns))] * experts, (tokens, columns))
        y = g.op("GatherND", made, g.op("Unsqueeze", places, g.integers([2])), batch_dims=1)
    elif routed:
        # No token chooses an expert twice, so that each expert gets at most one row of it.
        which = g.op("Equal", g.op("Unsqueeze", ids, g.integers([1])), g.array(np.arange(experts, dtype=np.int64)[None, :, None]))
        apart = g.ops("Split", experts, g.op("MatMul", g.cast(which, "f32"), x), axis=1, **_parts(g, experts))
        made = _each(g, node, [g.reshape(one, (tokens, columns)) for one in apart], (tokens, columns))
        y = g.op("GatherND", made, g.op("Unsqueeze", places, g.integers([2])), batch_dims=1)
    else:
        every = _times(tokens, chosen)
        made = _each(g, node, [g.reshape(x, (every, columns))] * experts, (every, columns))
        y = g.reshape(g.op("GatherND", made, g.reshape(places, (every, 1)), batch_dims=1), (tokens, chosen, rows))
    if not routed:
        none = g.op("Unsqueeze", g.op("Equal", ids, g.integers([experts])), g.integers([2]))
        y = g.op("Where", none, g.number(0.0), y)
    g.bind(node.outputs[0], y)


def _each(g: Graph, node: Node, inputs: list[str], shape: Shape) -> str:
    """What every expert makes of its input [n, K], together [n, experts, N]."""
    bias = [*node.inputs, -1, -1, -1, -1][5]
    made = []
    for number, (x, weight) in enumerate(zip(inputs, node_weights(node, g.plan.values), strict=True)):
        y = product(g, x, shape, weight)
        if bias >= 0:
            y = g.op("Add", y, g.op("Gather", g.value(bias), g.number(number, "i64"), axis=0))
        made.append(g.op("Unsqueeze", y, g.integers([1])))
    return g.op("Concat", *made, axis=1)


def _parts(g: Graph, count: int) -> dict[str, int]:
    """Split into parts of one element: from opset 18 on their number must be said."""
    return {"num_outputs": count} if g.rules.opset >= 18 else {}


def _times(dim: Sym | int, factor: Sym | int) -> Sym | int:
    assert isinstance(factor, int)
    return Sym(dim.sym, dim.mul * factor, dim.add * factor) if isinstance(dim, Sym) else dim * factor


def _is_choice(g: Graph, ids: int, experts: int) -> bool:
    """Whether ids are what a top-k over the experts' scores gives: each one's own, and none that stands for no expert."""
    maker = next((node for node in g.plan.nodes if ids in node.outputs), None)
    return maker is not None and maker.op == "topk" and maker.outputs[1] == ids and g.shape(maker.inputs[0])[-1] == experts


GROUPED_LINEAR: dict[str, Lowering] = {"grouped_linear": Lowering(_emit)}
