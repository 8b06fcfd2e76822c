"""Products of int8 activations whose codes and scales are made row by row: MatMulInteger, then the scales of both sides.

It is what the plan's op says, sum for sum: the integers' products are exact, and what is rounded is only their scaling. Where a weight has
scales for groups of columns there is no such node, since each group of activations has a scale of its own too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mixplan.runtime.devices.npu_weights import Weight, weight_tensors
from mixplan.runtime.plan import Node
from mixplan.targets.npu.lower.base import attrs_of

if TYPE_CHECKING:
    from mixplan.targets.npu.graph import Graph

__all__ = ["integer_product", "takes_codes"]


def takes_codes(g: Graph, node: Node, weight: Weight) -> bool:
    """Whether the node's codes can be multiplied as they are: they are known, and the weight stands as integers with a scale a channel."""
    form = weight_tensors(weight, g.plan.values, g.rules.weights).form
    return g.rules.integer_products and node.inputs[0] not in g.rounded and form.scales == "channel" and form.kind in ("i8", "u8")


def integer_product(g: Graph, node: Node, weight: Weight) -> str:
    """The codes [.., Kp] of the node's first input times the weight [K, N], f32."""
    parts = weight_tensors(weight, g.plan.values, g.rules.weights)
    assert parts.scales is not None
    codes, shape = g.value(node.inputs[0]), g.shape(node.inputs[0])
    columns = int(attrs_of(node)["columns"])
    if shape[-1] != columns:
        codes = g.part(codes, len(shape) - 1, 0, columns)
    zeros = ["", g.tensor(parts.zeros)] if parts.zeros is not None else []
    whole = g.cast(g.op("MatMulInteger", codes, g.tensor(parts.codes), *zeros), "f32")
    y = g.op("Mul", g.op("Mul", whole, g.value(node.inputs[1])), g.tensor(parts.scales))
    if parts.minima is not None:
        y = g.op("Add", y, g.op("Mul", g.value(node.inputs[2]), g.tensor(parts.minima)))
    return y
