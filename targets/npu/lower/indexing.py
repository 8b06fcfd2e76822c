"""Ops that pick elements by index, and sorting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

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


def _index_nd(g: Graph, node: Node) -> None:
    """Several index tensors: the axes that they index become one, and so do they."""
    axis, x, shape = attrs_of(node)["axis"], g.value(node.inputs[0]), g.shape(node.inputs[0])
    sizes = [int(size) for size in shape[axis : axis + len(node.inputs) - 1] if isinstance(size, int)]
    place = ""
    for index, size in zip(node.inputs[1:], sizes, strict=True):
        part = g.cast(g.value(index), "i64")
        part = g.op("Where", g.op("Less", part, g.number(0, "i64")), g.op("Add", part, g.number(size, "i64")), part)
        place = part if not place else g.op("Add", g.op("Mul", place, g.number(size, "i64")), part)
    if len(sizes) > 1:
        x = g.reshape(x, (*shape[:axis], math.prod(sizes), *shape[axis + len(sizes) :]))
    g.bind(node.outputs[0], g.op("Gather", x, place, axis=axis))


def _index_check(node: Node, values: Sequence[Value], rules: ProviderRules) -> str:
    axis = attrs_of(node)["axis"]
    return static_axes(values, node.inputs[0], range(axis, axis + len(node.inputs) - 1)) if len(node.inputs) > 2 else ""


def _index_add(g: Graph, node: Node) -> None:
    x, index, source = (g.value(i) for i in node.inputs)
    axis, shape = attrs_of(node)["axis"], g.shape(node.inputs[2])
    apart = g.op("Reshape", index, g.integers([-1 if place == axis else 1 for place in range(len(shape))]))
    index = g.op("Expand", apart, g.extents(shape))
    g.bind(node.outputs[0], g.op("ScatterElements", x, index, source, axis=axis, reduction="add"))


def _index_add_check(node: Node, values: Sequence[Value], rules: ProviderRules) -> str:
    return _NUMBERS(node, values, rules) or static_axes(values, node.inputs[2], [attrs_of(node)["axis"]])


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
    shape, axis = g.shape(node.outputs[0]), attrs_of(node)["axis"]
    end = g.op("Squeeze", g.extent(shape[axis]), g.integers([0]))
    along = g.op("Range", g.number(0, "i64"), end, g.number(1, "i64"))
    apart = g.op("Reshape", along, g.integers([-1, *(1 for _ in range(len(shape) - axis - 1))]))
    made = g.op("Expand", apart, g.extents(shape))
    kind = g.dtype(node.outputs[0]).value
    g.bind(node.outputs[0], made if kind == "i64" else g.cast(made, kind))


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
    return only_dtypes(DType.f32, DType.i64)(node, values, rules) or static_axes(values, node.inputs[0], [attrs_of(node)["axis"]])


INDEXING: dict[str, Lowering] = {
    "take": Lowering(_take),
    "index_nd": Lowering(_index_nd, _index_check),
    "index_add": Lowering(_index_add, _index_add_check),
    "gather": Lowering(_gather, _along_check),
    "scatter": Lowering(_scatter, _along_check),
    "iota": Lowering(_iota),
    "topk": Lowering(_topk, _sort_check),
    "sort": Lowering(_sort, _sort_check),
}
