"""Elementwise ops, conversions, and ops that move data or only look at it otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mixplan.runtime.plan import Node, Sym
from mixplan.targets.gpu.lower.builder import Builder
from mixplan.targets.gpu.lower.chain import MOST_LOADS, MOST_STORES, POINTWISE, ChainText
from mixplan.targets.gpu.lower.views import Refused, broadcast, contiguous_strides, reshaped

__all__ = ["ELEMENTWISE", "VIEWS", "emit_chain"]


def emit_chain(b: Builder, nodes: Sequence[Node], outputs: Sequence[int]) -> None:
    """Launch pointwise nodes together, in two parts where the kernel has not enough pointers for all that they read and store.

    outputs: the values that are stored; the others stay in registers. The last node has the shape of the loop.
    """
    made = {value for node in nodes for value in node.outputs}
    loads = {value for node in nodes for value in node.inputs if value not in made and b.values[value].fill is None}
    if len(nodes) > 1 and (len(loads) > MOST_LOADS or len(outputs) > MOST_STORES):
        half = len(nodes) // 2
        later = {value for node in nodes[half:] for value in node.inputs}
        for part, needed in ((nodes[:half], {*outputs, *later}), (nodes[half:], set(outputs))):
            emit_chain(b, part, [value for node in part for value in node.outputs if value in needed])
        return
    text = ChainText(b.values[nodes[-1].outputs[0]].shape)
    names: dict[int, str] = {}
    for node in nodes:
        for value in node.inputs:
            if value not in names:
                declared = b.values[value]
                names[value] = text.load(b.view(value)) if declared.fill is None else text.number(declared.fill, declared.dtype)
        names[node.outputs[0]] = text.op(node, [names[value] for value in node.inputs], b.values)
    for value in outputs:
        text.store(names[value], b.define(value))
    b.chain(text)


def _pointwise(b: Builder, node: Node) -> None:
    """A node alone."""
    emit_chain(b, [node], node.outputs)


def _reshape(b: Builder, node: Node) -> None:
    x, shape = b.view(node.inputs[0]), b.values[node.outputs[0]].shape
    b.views[node.outputs[0]] = reshaped(x, shape) or replace(b.contiguous(x), shape=shape, strides=contiguous_strides(shape))


def _slice(b: Builder, node: Node) -> None:
    x, shape = b.view(node.inputs[0]), b.values[node.outputs[0]].shape
    axis, start, step = (int(str(node.attrs.get(name, 1))) for name in ("axis", "start", "step"))
    size = x.shape[axis]
    if isinstance(size, Sym) and start < 0:
        raise Refused("a slice counted from the end of the tokens")
    begin = start if start >= 0 or not isinstance(size, int) else start + size
    strides = list(x.strides)
    offset = x.offset + begin * strides[axis]
    strides[axis] = 0 if shape[axis] == 1 else strides[axis] * step
    b.views[node.outputs[0]] = replace(x, shape=shape, strides=tuple(strides), offset=offset)


def _permute(b: Builder, node: Node) -> None:
    x, axes = b.view(node.inputs[0]), node.attrs["axes"]
    assert isinstance(axes, tuple)
    order = [int(str(axis)) for axis in axes]
    view = replace(x, shape=tuple(x.shape[i] for i in order), strides=tuple(x.strides[i] for i in order))
    # What follows may need it contiguous, which it can only be with the tokens in front.
    contiguous_strides(view.shape)
    b.views[node.outputs[0]] = view


def _expand(b: Builder, node: Node) -> None:
    shape = b.values[node.outputs[0]].shape
    contiguous_strides(shape)  # what follows may need it so
    b.views[node.outputs[0]] = broadcast(b.view(node.inputs[0]), shape)


def _flip(b: Builder, node: Node) -> None:
    x, axes = b.view(node.inputs[0]), node.attrs["axes"]
    assert isinstance(axes, tuple)
    strides, offset = list(x.strides), x.offset
    for axis in (int(str(one)) for one in axes):
        size = x.shape[axis]
        if not isinstance(size, int):
            raise Refused("flipped along the tokens")
        offset += (size - 1) * strides[axis]
        strides[axis] = -strides[axis]
    b.views[node.outputs[0]] = replace(x, strides=tuple(strides), offset=offset)


VIEWS = frozenset({"reshape", "permute", "expand", "slice", "flip"})
"""Ops that launch nothing, or a copy."""

ELEMENTWISE = {
    **dict.fromkeys(sorted(POINTWISE), _pointwise),
    "reshape": _reshape,
    "slice": _slice,
    "permute": _permute,
    "expand": _expand,
    "flip": _flip,
}
