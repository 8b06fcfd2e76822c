"""Ops whose results depend on where an element stands: parts side by side, borders, triangles, places themselves. Each is one chain."""

from __future__ import annotations

from dataclasses import replace

from mixplan.runtime.dtypes import DType
from mixplan.runtime.plan import Node
from mixplan.targets.gpu.lower.builder import Builder
from mixplan.targets.gpu.lower.chain import MOST_LOADS, ChainText
from mixplan.targets.gpu.lower.views import Refused, View

__all__ = ["PLACES"]


def _number(text: ChainText, value: int) -> str:
    return text.number(value, DType.i64)


def _cat(b: Builder, node: Node) -> None:
    axis = int(str(node.attrs["axis"]))
    views = [b.view(value) for value in node.inputs]
    sizes = [size for size in (view.shape[axis] for view in views) if isinstance(size, int)]
    if len(sizes) < len(views):
        raise Refused("parts along the tokens")
    y = b.define(node.outputs[0])
    if len(views) > MOST_LOADS:
        _copied(b, views, sizes, axis, y)
        return
    text = ChainText(y.shape)
    place, made, at = text.index(axis), "", 0
    for number, (view, size) in enumerate(zip(views, sizes, strict=True)):
        begun = [text.compare("ge", place, _number(text, at))] if number else []
        ends = [text.compare("lt", place, _number(text, at + size))] if number < len(views) - 1 else []
        stride = view.strides[axis]
        if not begun + ends:
            made = text.load(view)
            break
        part = text.load_part(replace(view, shape=y.shape), text.both(begun + ends), at * stride)
        made = text.choose(begun[0], part, made, y.dtype) if begun else part
        at += size
    text.store(made, y)
    b.chain(text)


def _copied(b: Builder, views: list[View], sizes: list[int], axis: int, y: View) -> None:
    """More parts than a chain reads: one launch for each."""
    at = 0
    for view, size in zip(views, sizes, strict=True):
        strides = tuple(0 if dim == 1 else stride for dim, stride in zip(view.shape, y.strides, strict=True))
        b.copy(view, y.dtype, View(y.home, y.dtype, view.shape, strides, y.offset + at * y.strides[axis]))
        at += size


def _pad(b: Builder, node: Node) -> None:
    x, pads = b.view(node.inputs[0]), node.attrs["pads"]
    assert isinstance(pads, tuple)
    y = b.define(node.outputs[0])
    text = ChainText(y.shape)
    conditions, shift = [], 0
    for axis, size in enumerate(x.shape):
        low, high = (int(str(pads[2 * axis + end])) for end in (0, 1)) if 2 * axis < len(pads) else (0, 0)
        if not low and not high:
            continue
        if not isinstance(size, int):
            raise Refused("padding along the tokens")
        place = text.index(axis)
        conditions += [text.compare("ge", place, _number(text, low)), text.compare("lt", place, _number(text, low + size))]
        shift += low * x.strides[axis]
    if conditions:
        inside = text.both(conditions)
        border = text.number(float(str(node.attrs.get("value", 0.0))), x.dtype)
        made = text.choose(inside, text.load_part(replace(x, shape=y.shape), inside, shift), border, x.dtype)
    else:
        made = text.load(x)
    text.store(made, y)
    b.chain(text)


def _triangle(b: Builder, node: Node) -> None:
    """tril and triu: elements above or below a diagonal become 0."""
    x = b.view(node.inputs[0])
    y = b.define(node.outputs[0])
    text = ChainText(y.shape)
    row, column = (text.index(len(y.shape) - 2 + i) for i in range(2))
    edge = text.compare("add", row, _number(text, int(str(node.attrs["diagonal"]))))
    kept = text.compare("le" if node.op == "tril" else "ge", column, edge)
    text.store(text.choose(kept, text.load(x), text.number(0, x.dtype), x.dtype), y)
    b.chain(text)


def _iota(b: Builder, node: Node) -> None:
    y = b.define(node.outputs[0])
    text = ChainText(y.shape)
    text.store(text.cast(text.index(int(str(node.attrs["axis"]))), DType.i64, y.dtype), y)
    b.chain(text)


PLACES = {"cat": _cat, "pad": _pad, "tril": _triangle, "triu": _triangle, "iota": _iota}
