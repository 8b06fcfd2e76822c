"""A product of two values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mixplan.runtime.plan import Node, Value
from mixplan.targets.npu.lower.base import Lowering, static_axes
from mixplan.targets.npu.providers.base import ProviderRules

if TYPE_CHECKING:
    from mixplan.targets.npu.graph import Graph

__all__ = ["MATMUL"]


def _emit(g: Graph, node: Node) -> None:
    g.bind(node.outputs[0], g.op("MatMul", *(g.value(index) for index in node.inputs)))


def _check(node: Node, values: Sequence[Value], rules: ProviderRules) -> str:
    return static_axes(values, node.inputs[0], [-1])


MATMUL: dict[str, Lowering] = {"matmul": Lowering(_emit, _check)}
