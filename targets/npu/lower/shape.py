"""Ops that only move elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mixplan.runtime.plan import Node, Sym, Value
from mixplan.targets.npu.lower.base import Lowering, attrs_of, static_axes
from mixplan.targets.npu.providers.base import ProviderRules

if TYPE_CHECKING:
    from mixplan.targets.npu.graph import Graph

__all__ = ["SHAPE"]


def _tokens(values: Sequence[Value], index: int) -> list[int]:
    """The axes of a value that have the step's tokens (or rows), one element each."""
    return [axis for axis, dim in enumerate(values[index].shape) if isinstance(dim, Sym)]


def _apart(node: Node, values: Sequence[Value], rules: ProviderRules) -> str:
    """Tokens must keep an axis of their own, of one element each: then padding at its end stays at the end."""
    for index in (*node.inputs, *node.outputs):
        for dim in values[index].shape if index >= 0 else ():
            if isinstance(dim, Sym) and (dim.mul != 1 or dim.add):
                return "it folds the step's tokens into another axis, and they are padded to a bucket on the NPU"
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


def _expand_check(node: Node, values: Sequence[Value], rules: ProviderRules) -> str:
    """How many tokens there are is read from an input of the region, of which the node's own is the one that is known."""
    if _tokens(values, node.outputs[0]) and not _tokens(values, node.inputs[0]):
        return "it makes the step's tokens out of one element"
    return _apart(node, values, rules)


SHAPE: dict[str, Lowering] = {
    "reshape": Lowering(_reshape, _apart),
    "permute": Lowering(_permute),
    "expand": Lowering(_expand, _expand_check),
    "slice": Lowering(_slice, _slice_check),
    "cat": Lowering(_cat, _cat_check),
    "pad": Lowering(_pad, _apart),
}
