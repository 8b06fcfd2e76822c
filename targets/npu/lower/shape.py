"""Ops that only move elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mixplan.runtime.dtypes import DType
from mixplan.runtime.plan import Node, Sym, Value
from mixplan.targets.npu.lower.base import ARITHMETIC, Lowering, attrs_of, only_dtypes, static_axes
from mixplan.targets.npu.providers.base import ProviderRules

if TYPE_CHECKING:
    from mixplan.targets.npu.graph import Graph

__all__ = ["SHAPE"]


def _apart(node: Node, values: Sequence[Value], rules: ProviderRules) -> str:
    """Tokens must keep an axis of their own, of one element each: then padding at its end stays at the end."""
    for index in (*node.inputs, *node.outputs):
        for dim in values[index].shape if index >= 0 else ():
            if isinstance(dim, Sym) and (dim.mul != 1 or dim.add):
                return (
                    "it folds the step's tokens into another axis, and they are padded to a bucket on the NPU; give it another target, "
                    "as in --target cpu+npu"
                )
    return ""


def _reshape(g: Graph, node: Node) -> None:
    g.bind(node.outputs[0], g.reshape(g.value(node.inputs[0]), g.shape(node.outputs[0])))


def _permute(g: Graph, node: Node) -> None:
    g.bind(node.outputs[0], g.op("Transpose", g.value(node.inputs[0]), perm=list(attrs_of(node)["axes"])))


def _expand(g: Graph, node: Node) -> None:
    g.bind(node.outputs[0], g.op("Expand", g.value(node.inputs[0]), g.extents(g.shape(node.outputs[0]))))


def _slice(g: Graph, node: Node) -> None:
    attrs = attrs_of(node)
    g.bind(node.outputs[0], g.part(g.value(node.inputs[0]), attrs["axis"], attrs["start"], attrs["stop"], attrs["step"]))


def _slice_check(node: Node, values: Sequence[Value], rules: ProviderRules) -> str:
    return static_axes(values, node.inputs[0], [attrs_of(node)["axis"]])


def _cat(g: Graph, node: Node) -> None:
    g.bind(node.outputs[0], g.op("Concat", *(g.value(index) for index in node.inputs), axis=attrs_of(node)["axis"]))


def _cat_check(node: Node, values: Sequence[Value], rules: ProviderRules) -> str:
    return static_axes(values, node.inputs[0], [attrs_of(node)["axis"]]) or _apart(node, values, rules)


def _pad(g: Graph, node: Node) -> None:
    attrs = attrs_of(node)
    pads = [*attrs["pads"][0::2], *attrs["pads"][1::2]]
    value = g.number(attrs["value"], g.dtype(node.inputs[0]).value)
    g.bind(node.outputs[0], g.op("Pad", g.value(node.inputs[0]), g.integers(pads), value))


def _flip(g: Graph, node: Node) -> None:
    axes = list(attrs_of(node)["axes"])
    ends = [np.iinfo(np.int64).min + 1 for _ in axes]
    steps = [-1 for _ in axes]
    g.bind(node.outputs[0], g.op("Slice", g.value(node.inputs[0]), *map(g.integers, (steps, ends, axes, steps))))


def _flip_check(node: Node, values: Sequence[Value], rules: ProviderRules) -> str:
    return static_axes(values, node.inputs[0], attrs_of(node)["axes"])


def _triangle(upper: int) -> Callable[[Graph, Node], None]:
    def emit(g: Graph, node: Node) -> None:
        x, kind = g.value(node.inputs[0]), g.dtype(node.inputs[0]).value
        x = g.cast(x, "i64") if kind == "i32" else x
        made = g.op("Trilu", x, g.number(attrs_of(node)["diagonal"], "i64"), upper=upper)
        g.bind(node.outputs[0], g.cast(made, kind) if kind == "i32" else made)

    return emit


_triangle_check = only_dtypes(*ARITHMETIC, DType.bool)


SHAPE: dict[str, Lowering] = {
    "reshape": Lowering(_reshape, _apart),
    "permute": Lowering(_permute),
    "expand": Lowering(_expand, _apart),
    "slice": Lowering(_slice, _slice_check),
    "cat": Lowering(_cat, _cat_check),
    "pad": Lowering(_pad, _apart),
    "flip": Lowering(_flip, _flip_check),
    "tril": Lowering(_triangle(0), _triangle_check),
    "triu": Lowering(_triangle(1), _triangle_check),
}
