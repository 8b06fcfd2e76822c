"""Reshape, permute, expand, slice and flip: other references to the same memory, a copy only where strides cannot say it."""

from __future__ import annotations

from dataclasses import replace

from mixplan.runtime.plan import Node
from mixplan.targets.cpu.codegen.builder import Builder
from mixplan.targets.cpu.codegen.layout import contiguous
from mixplan.targets.cpu.codegen.poly import ONE, Poly
from mixplan.targets.cpu.codegen.ref import Ref, broadcast, contiguous_strides, reshape

__all__ = ["VIEWS", "emit_view"]

VIEWS = frozenset({"reshape", "permute", "expand", "slice", "flip"})


def emit_view(builder: Builder, node: Node, index: int) -> None:
    """Make the node's output a view of its input."""
    x, shape = builder.ref(node.inputs[0]), builder.shape(node.outputs[0])
    builder.refs[node.outputs[0]] = _view(builder, node, index, x, shape)


def _view(builder: Builder, node: Node, index: int, x: Ref, shape: tuple[Poly, ...]) -> Ref:
    if x.literal:
        return replace(x, shape=shape, strides=(Poly(),) * len(shape))
    if node.op == "reshape":
        seen = reshape(x, shape)
        if seen is None:
            seen = reshape(contiguous(builder, x, index), shape)
        if seen is None:
            # The polynomials do not factor (a dimension such as 2*T + 1 cut in two); contiguous memory has any shape of its size.
            return contiguous(builder, x, index).view(shape, contiguous_strides(shape))
        return seen
    if node.op == "expand":
        return broadcast(x, shape)
    if node.op == "permute":
        axes = [int(axis) for axis in node.attrs["axes"]]  # type: ignore[union-attr]
        return x.view(tuple(x.shape[a] for a in axes), tuple(x.strides[a] for a in axes))
    if node.op == "flip":
        strides, offset = list(x.strides), Poly()
        for axis in (int(axis) % len(shape) for axis in node.attrs["axes"]):  # type: ignore[union-attr]
            offset = offset + (x.shape[axis] + -1) * x.strides[axis]
            strides[axis] = strides[axis] * -1
        return x.view(shape, tuple(strides), offset)
    axis, start, step = int(str(node.attrs["axis"])), int(str(node.attrs.get("start", 0))), int(str(node.attrs.get("step", 1)))
    first = Poly.of(start) if start >= 0 else x.shape[axis] + start
    strides = list(x.strides)
    strides[axis] = strides[axis] * step if shape[axis] != ONE else strides[axis]
    return x.view(shape, tuple(strides), first * x.strides[axis])
