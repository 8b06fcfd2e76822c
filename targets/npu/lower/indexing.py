"""Ops that pick elements by index, and sorting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from mixplan.runtime.dtypes import DType
from mixplan.runtime.plan import Node, Value
from mixplan.targets.npu.lower.base import ARITHMETIC, Lowering, attrs_of, only_dtypes, static_axes
from mixplan.targets.npu.providers.base import ProviderRules

if TYPE_CHECKING:
    from mixplan.targets.npu.graph import Graph

__all__ = ["INDEXING"]

_NUMBERS = only_dtypes(*ARITHMETIC)


def _take(g: Graph, node: Node) -> None:
    x, index = (g.value(i) for i in node.inputs)
    g.bind(node.outputs[0], g.op("Gather", x, index, axis=attrs_of(node)["axis"]))


def _index_check(node: Node, values: Sequence[Value], rules: ProviderRules) -> str:
    return f"{len(node.inputs) - 1} index tensors; the NPU takes one" if len(node.inputs) != 2 else ""


def _gather(g: Graph, node: Node) -> None:
    x, index = (g.value(i) for i in node.inputs)
    g.bind(node.outputs[0], g.op("GatherElements", x, index, axis=attrs_of(node)["axis"]))


def _along_check(node: Node, values: Sequence[Value], rules: ProviderRules) -> str:
    return _NUMBERS(node, values, rules) or static_axes(values, node.inputs[0], [attrs_of(node)["axis"]])


def _scatter(g: Graph, node: Node) -> None:
    attrs = attrs_of(node)
    x, index, source = (g.value(i) for i in node.inputs)
    if g.shape(node.inputs[1]) != g.shape(node.inputs[2]):  # more is given than is written
        shape = g.extents(g.shape(node.inputs[1]))
        axes = range(len(g.shape(node.inputs[1])))
        source = g.op("Slice", source, g.integers([0 for _ in axes]), shape, g.integers(axes))
    g.bind(node.outputs[0], g.op("ScatterElements", x, index, source, axis=attrs["axis"], reduction=attrs["reduce"]))


def _iota(g: Graph, node: Node) -> None:
    shape = [int(dim) for dim in g.shape(node.outputs[0]) if isinstance(dim, int)]
    axis = attrs_of(node)["axis"]
    along = np.arange(shape[axis], dtype=np.int64).reshape((-1,) + (1,) * (len(shape) - axis - 1))
    g.bind(node.outputs[0], g.op("Expand", g.array(along), g.integers(shape)))


def _iota_check(node: Node, values: Sequence[Value], rules: ProviderRules) -> str:
    return static_axes(values, node.outputs[0], range(len(values[node.outputs[0]].shape)))


def _topk(g: Graph, node: Node) -> None:
    attrs = attrs_of(node)
    made = g.ops("TopK", 2, g.value(node.inputs[0]), g.integers([attrs["k"]]), axis=attrs["axis"], largest=int(attrs["largest"]))
    for index, name in zip(node.outputs, made, strict=True):
        g.bind(index, name)


def _sort(g: Graph, node: Node) -> None:
    attrs, shape = attrs_of(node), g.shape(node.inputs[0])
    count = g.extent(shape[attrs["axis"]])
    made = g.ops("TopK", 2, g.value(node.inputs[0]), count, axis=attrs["axis"], largest=int(attrs["descending"]))
    for index, name in zip(node.outputs, made, strict=True):
        g.bind(index, name)


def _sort_check(node: Node, values: Sequence[Value], rules: ProviderRules) -> str:
    return only_dtypes(DType.f32)(node, values, rules) or static_axes(values, node.inputs[0], [attrs_of(node)["axis"]])


INDEXING: dict[str, Lowering] = {
    "take": Lowering(_take),
    "index_nd": Lowering(_take, _index_check),
    "gather": Lowering(_gather, _along_check),
    "scatter": Lowering(_scatter, _along_check),
    "iota": Lowering(_iota, _iota_check),
    "topk": Lowering(_topk, _sort_check),
    "sort": Lowering(_sort, _sort_check),
}
