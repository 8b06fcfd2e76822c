"""Products with a weight: MatMul over a dequantized matrix, with bias and residual."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mixplan.runtime.devices.npu_weights import Weight, node_weights
from mixplan.runtime.plan import Node, Shape
from mixplan.targets.npu.lower.base import Lowering, attrs_of, float_check
from mixplan.targets.npu.lower.floats8 import rows_as_floats8
from mixplan.targets.npu.lower.integer_product import integer_product, takes_codes
from mixplan.targets.npu.lower.weights import product

if TYPE_CHECKING:
    from mixplan.targets.npu.graph import Graph

__all__ = ["LINEAR", "float_input", "input_shape", "quantized_product"]


def float_input(g: Graph, node: Node) -> str:
    """The input of a product of floats, rounded to bf16 or to 8-bit floats where the node says so."""
    x = g.value(node.inputs[0])
    if attrs_of(node)["activation_dtype"] == "e4m3":
        return rows_as_floats8(g, x, len(g.shape(node.inputs[0])))
    return g.cast(g.cast(x, "bf16"), "f32") if attrs_of(node)["activation_dtype"] == "bf16" else x


def _rounded_input(g: Graph, node: Node) -> str:
    """The input of a product of integers, as the numbers that the integers stand for.

    Codes that come from outside the region, made row by row, are multiplied by their own scales.
    """
    for known in (g.rounded, g.widened):
        if node.inputs[0] in known:
            return known[node.inputs[0]]
    codes, scales, shape = g.cast(g.value(node.inputs[0]), "f32"), g.value(node.inputs[1]), g.shape(node.inputs[0])
    groups, width = g.shape(node.inputs[1])[-1], shape[-1]
    assert isinstance(groups, int) and isinstance(width, int)
    apart = g.reshape(codes, (*shape[:-1], groups, width // groups))
    numbers = g.reshape(g.op("Mul", apart, g.op("Unsqueeze", scales, g.integers([-1]))), shape)
    columns = int(attrs_of(node)["columns"])
    made = numbers if columns == width else g.part(numbers, len(shape) - 1, 0, columns)
    g.widened[node.inputs[0]] = made
    return made


def input_shape(g: Graph, node: Node) -> Shape:
    """The shape of a product's input, whose last dim may be padded where it is codes."""
    return (*g.shape(node.inputs[0])[:-1], int(attrs_of(node)["columns"]))


def _finish(g: Graph, node: Node, y: str, bias: int, residual: int) -> None:
    if bias >= 0:
        y = g.op("Add", y, g.value(bias))
    if residual >= 0:
        y = g.op("Add", y, g.value(residual))
    g.bind(node.outputs[0], y)


def _product(g: Graph, node: Node, x: str) -> str:
    return product(g, x, input_shape(g, node), node_weights(node, g.plan.values)[0])


def _linear(g: Graph, node: Node) -> None:
    bias, residual = [*node.inputs, -1, -1, -1, -1, -1][4:6]
    _finish(g, node, _product(g, node, float_input(g, node)), bias, residual)


def quantized_product(g: Graph, node: Node, weight: Weight) -> str:
    """The node's codes times a weight: as integers where that can be, else the numbers that they stand for."""
    if takes_codes(g, node, weight):
        return integer_product(g, node, weight)
    known = node.inputs[0] in g.rounded
    x, name = _rounded_input(g, node), g.plan.values[node.outputs[0]].name
    return product(g, x, input_shape(g, node), weight, name if known else "")


def _linear_q(g: Graph, node: Node) -> None:
    bias, residual = [*node.inputs, -1, -1, -1][6:8]
    _finish(g, node, quantized_product(g, node, node_weights(node, g.plan.values)[0]), bias, residual)


LINEAR: dict[str, Lowering] = {"linear": Lowering(_linear, float_check), "linear_q": Lowering(_linear_q)}
