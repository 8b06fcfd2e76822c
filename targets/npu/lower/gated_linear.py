"""activation(x Wg + bg) * (x Wu + bu)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mixplan.runtime.devices.npu_weights import node_weights
from mixplan.runtime.plan import Node
from mixplan.targets.npu.lower.base import Lowering, attrs_of, float_check
from mixplan.targets.npu.lower.elementwise import activate
from mixplan.targets.npu.lower.linear import float_input, input_shape, quantized_product
from mixplan.targets.npu.lower.weights import product

if TYPE_CHECKING:
    from mixplan.targets.npu.graph import Graph

__all__ = ["GATED_LINEAR"]


def _emit(g: Graph, node: Node, both: str, bias: int) -> None:
    """both: the products with the gate's weight and with the up part's, one after the other along the last axis."""
    last, rows = len(g.shape(node.outputs[0])) - 1, int(attrs_of(node)["rows"])
    halves = [g.part(both, last, start, start + rows) for start in (0, rows)]
    if bias >= 0:
        added = g.value(bias)
        halves = [g.op("Add", half, g.op("Gather", added, g.number(i, "i64"), axis=0)) for i, half in enumerate(halves)]
    g.bind(node.outputs[0], g.op("Mul", activate(g, attrs_of(node)["activation"], halves[0]), halves[1]))


def _gated(g: Graph, node: Node) -> None:
    (weight,) = node_weights(node, g.plan.values)
    _emit(g, node, product(g, float_input(g, node), input_shape(g, node), weight), [*node.inputs, -1, -1, -1][4])


def _gated_q(g: Graph, node: Node) -> None:
    (weight,) = node_weights(node, g.plan.values)
    _emit(g, node, quantized_product(g, node, weight), [*node.inputs, -1, -1][6])


GATED_LINEAR: dict[str, Lowering] = {
    "gated_linear": Lowering(_gated, float_check),
    "gated_linear_q": Lowering(_gated_q),
}
