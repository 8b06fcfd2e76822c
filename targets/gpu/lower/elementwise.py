"""Elementwise ops, conversions, and ops that move data or only look at it otherwise."""

from __future__ import annotations

from dataclasses import replace

from mixplan.runtime.dtypes import DType
from mixplan.runtime.plan import Node, Sym
from mixplan.targets.gpu.lower.builder import POINTERS, Builder
from mixplan.targets.gpu.lower.views import Refused, View, broadcast, contiguous_strides, reshaped

__all__ = ["ELEMENTWISE"]

_UNARY = (
    "neg abs exp exp2 expm1 log log1p log_sigmoid sign sqrt rsqrt reciprocal tanh sigmoid silu gelu gelu_tanh relu erf sin cos floor ceil "
    "round square"
).split()
_ARITHMETIC = ("add", "sub", "mul", "div", "maximum", "minimum")
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or")
_INTEGERS = (DType.i64, DType.i32)


def _unary(b: Builder, node: Node) -> None:
    x = b.view(node.inputs[0])
    if x.dtype is not DType.f32:
        raise Refused(f"{node.op} of {x.dtype.value}")
    if node.op == "softplus" and (node.attrs.get("beta", 1.0) != 1.0 or node.attrs.get("threshold", 20.0) != 20.0):
        raise Refused("softplus with another beta or threshold than 1 and 20")
    b.elementwise("unary", [x, b.define(node.outputs[0])], {"OP": node.op, "TRUTH": False})


def _float_test(b: Builder, node: Node) -> None:
    x = b.view(node.inputs[0])
    if x.dtype is not DType.f32:
        raise Refused(f"{node.op} of {x.dtype.value}")
    b.elementwise("unary", [x, b.define(node.outputs[0])], {"OP": node.op, "TRUTH": True})


def _logical_not(b: Builder, node: Node) -> None:
    x = b.view(node.inputs[0])
    b.elementwise("unary", [x, b.define(node.outputs[0])], {"OP": "logical_not", "TRUTH": True})


def _binary(b: Builder, node: Node) -> None:
    shape = b.values[node.outputs[0]].shape
    views = [broadcast(b.view(value), shape) for value in node.inputs]
    for view in views:
        whole = view.dtype in _INTEGERS and node.op not in ("div", "maximum", "minimum")
        truth = view.dtype is DType.bool and node.op in _COMPARISONS
        if view.dtype is not DType.f32 and not whole and not truth:
            raise Refused(f"{node.op} of {view.dtype.value}")
    b.elementwise("binary", [*views, b.define(node.outputs[0])], {"OP": node.op})


def _where(b: Builder, node: Node) -> None:
    shape = b.values[node.outputs[0]].shape
    views = [broadcast(b.view(value), shape) for value in node.inputs]
    if any(view.dtype not in POINTERS for view in views):
        raise Refused("where of bf16")
    b.elementwise("where", [*views, b.define(node.outputs[0])], {})


def _cast(b: Builder, node: Node) -> None:
    x = b.view(node.inputs[0])
    if x.dtype is b.values[node.outputs[0]].dtype:
        b.views[node.outputs[0]] = x
    else:
        y = b.define(node.outputs[0])
        b.copy(x, y.dtype, y)


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


def _cat(b: Builder, node: Node) -> None:
    axis = int(str(node.attrs["axis"]))
    y = b.define(node.outputs[0])
    at = 0
    for value in node.inputs:
        x = b.view(value)
        size = x.shape[axis]
        if not isinstance(size, int):
            raise Refused("parts along the tokens")
        part = View(y.home, y.dtype, x.shape, tuple(0 if dim == 1 else s for dim, s in zip(x.shape, y.strides, strict=True)), y.offset)
        b.copy(x, y.dtype, replace(part, offset=y.offset + at * y.strides[axis]))
        at += size


ELEMENTWISE = {
    **dict.fromkeys((*_UNARY, "softplus"), _unary),
    **dict.fromkeys((*_ARITHMETIC, *_COMPARISONS), _binary),
    "logical_not": _logical_not,
    **dict.fromkeys(("isnan", "isinf"), _float_test),
    "where": _where,
    "cast": _cast,
    "reshape": _reshape,
    "slice": _slice,
    "permute": _permute,
    "expand": _expand,
    "cat": _cat,
}
