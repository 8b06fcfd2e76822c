"""activation(x Wg + bg) * (x Wu + bu)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mixplan.runtime.devices.npu_weights import node_weights
from mixplan.runtime.plan import Node
from mixplan.targets.npu.lower.base import Lowering, attrs_of
from mixplan.targets.npu.lower.elementwise import activate
from mixplan.targets.npu.lower.linear import float_input, input_shape, rounded_check, rounded_input
from mixplan.targets.npu.lower.weights import product

if TYPE_CHECKING:
    from mixplan.targets.npu.graph import Graph

__all__ = ["GATED_LINEAR"]


def _emit(g: Graph, node: Node, x: str, bias: int) -> None:
    halves = [product(g, x, input_shape(g, node), weight) for weight in node_weights(node, g.plan.values)]
    if bias >= 0:
        both = g.value(bias)
        halves = [g.op("Add", half, g.op("Gather", both, g.number(i, "i64"), axis=0)) for i, half in enumerate(halves)]
    g.bind(node.outputs[0], g.op("Mul", activate(g, attrs_of(node)["activation"], halves[0]), halves[1]))


def _gated(g: Graph, node: Node) -> None:
    _emit(g, node, float_input(g, node), [*node.inputs, -1, -1, -1][4])


def _gated_q(g: Graph, node: Node) -> None:
    _emit(g, node, rounded_input(g, node), [*node.inputs, -1, -1][6])


GATED_LINEAR: dict[str, Lowering] = {
    "gated_linear": Lowering(_gated),
    "gated_linear_q": Lowering(_gated_q, rounded_check),
}
