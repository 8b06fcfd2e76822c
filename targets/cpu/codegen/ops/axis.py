"""Ops along one axis: softmax, log_softmax, logsumexp, cumsum, argmax, argmin, topk, sort."""

from __future__ import annotations

from mixplan.runtime.plan import Node
from mixplan.targets.cpu.codegen.builder import Builder
from mixplan.targets.cpu.codegen.layout import in_memory
from mixplan.targets.cpu.codegen.ops.common import axis_of, flag, integer, joint_views, without
from mixplan.targets.cpu.codegen.poly import ZERO
from mixplan.targets.cpu.codegen.ref import Ref
from mixplan.targets.cpu.codegen.types import STORAGE
from mixplan.targets.cpu.codegen.writer import Writer

__all__ = ["emit_arg", "emit_cumsum", "emit_order", "emit_softmax"]


def _input(builder: Builder, node: Node, index: int) -> tuple[Ref, int]:
    x = in_memory(builder, node.inputs[0], index)
    if not x.shape:
        # A scalar has one axis of one element.
        x = x.view((x.size,), (x.size,))
    return x, axis_of(node, len(x.shape))


def _along(builder: Builder, node: Node, index: int, function: str, cost: int) -> None:
    """An op whose output has x's shape, or (logsumexp) x's shape without the axis."""
    x, axis = _input(builder, node, index)
    y = builder.output(node.outputs[0])
    stride = ZERO
    others = y.strides
    if len(y.shape) == len(x.shape):
        others = without(y.strides, axis)
        stride = y.strides[axis]
    w = Writer()
    w.use("generic/axis.h")
    px, py = w.pointer(x), w.pointer(y, write=True)
    vx, vy = joint_views(without(x.shape, axis), [(px, without(x.strides, axis)), (py, others)])
    w.line(f"{function}(c, {vy}, {stride}, {vx}, {x.strides[axis]}, {x.shape[axis]});")
    builder.emit(w, index, x.size * cost)


def emit_softmax(builder: Builder, node: Node, index: int) -> None:
    """softmax, log_softmax, logsumexp."""
    kind = {"softmax": "Softmax", "log_softmax": "LogSoftmax", "logsumexp": "LogSumExp"}[node.op]
    _along(builder, node, index, f"softmax<Soft::{kind}>", 6)


def emit_cumsum(builder: Builder, node: Node, index: int) -> None:
    """Cumulative sums, in the output's dtype."""
    kinds = (STORAGE[builder.value(value).dtype] for value in (node.inputs[0], node.outputs[0]))
    _along(builder, node, index, f"cumsum<{', '.join(kinds)}>", 2)


def emit_arg(builder: Builder, node: Node, index: int) -> None:
    """argmax and argmin. The output is contiguous in the order of the other axes."""
    x, axis = _input(builder, node, index)
    y = builder.output(node.outputs[0])
    w = Writer()
    w.use("generic/axis.h")
    px, py = w.pointer(x), w.pointer(y, write=True)
    (vx,) = joint_views(without(x.shape, axis), [(px, without(x.strides, axis))])
    largest = "true" if node.op == "argmax" else "false"
    w.line(f"arg_extremum<{largest}, {STORAGE[x.dtype]}>(c, {py}, {vx}, {x.strides[axis]}, {x.shape[axis]});")
    builder.emit(w, index, x.size * 2)


def emit_order(builder: Builder, node: Node, index: int) -> None:
    """topk and sort: values and indices, of which either may be unused."""
    x, axis = _input(builder, node, index)
    values, indices = builder.output(node.outputs[0]), builder.output(node.outputs[1])
    w = Writer()
    w.use("generic/axis.h")
    px, pv, pi = w.pointer(x), w.pointer(values, write=True), w.pointer(indices, write=True)
    others = without(values.strides, axis) if values.shape else ()
    vx, vv, vi = joint_views(without(x.shape, axis), [(px, without(x.strides, axis)), (pv, others), (pi, others)])
    stride = values.strides[axis] if values.shape else ZERO
    arguments = f"c, {vv}, {vi}, {stride}, {vx}, {x.strides[axis]}, {x.shape[axis]}"
    if node.op == "topk":
        largest = "true" if flag(node, "largest", True) else "false"
        w.line(f"topk<{largest}, {STORAGE[x.dtype]}>({arguments}, {integer(node, 'k')});")
    else:
        descending = "true" if flag(node, "descending") else "false"
        w.line(f"sort<{descending}, {STORAGE[x.dtype]}>({arguments});")
    builder.emit(w, index, x.size * 8)
