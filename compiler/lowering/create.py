"""Tensors made of nothing: filled ones and ranges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mixplan.compiler.lowering.context import CannotLower, Context
from mixplan.compiler.lowering.operands import Operand
from mixplan.runtime.dtypes import DType
from mixplan.runtime.plan import Dim, Sym

__all__ = ["TABLE"]

Lowering = Callable[..., Operand]


def filled(c: Context, number: Operand) -> Operand:
    """The node's shape and dtype, full of `number`."""
    shape = c.shape
    if all(isinstance(d, int) for d in shape):
        return c.build.fill(number, c.dtype, tuple(int(d) for d in shape if isinstance(d, int)))
    scalar = c.build.fill(number, c.dtype, (1,) * len(shape))
    return c.expand(scalar, shape)


def _constant(number: float) -> Lowering:
    def lower(c: Context, *_: Any, **__: Any) -> Operand:
        return filled(c, number)

    return lower


def full(c: Context, _like: Operand, value: Operand, **__: Any) -> Operand:
    """full and full_like (the first argument is a size or a tensor)."""
    return _of_value(c, value)


def new_full(c: Context, _like: Operand, _size: Operand, value: Operand, **__: Any) -> Operand:
    """new_full."""
    return _of_value(c, value)


def _of_value(c: Context, value: Operand) -> Operand:
    if isinstance(value, (bool, int, float)):
        return filled(c, value)
    ref = c.ref(value, c.dtype)
    return c.expand(c.reshape(ref, (1,) * len(c.shape)), c.shape)


def scalar_tensor(c: Context, value: Operand, **_: Any) -> Operand:
    """A number as a tensor."""
    return filled(c, value)


def arange(c: Context, *args: Operand, **_: Any) -> Operand:
    """A range; where its length depends on the step, an iota scaled and moved."""
    start, stop, step = 0, args[0], 1
    if len(args) >= 2:
        start, stop = args[0], args[1]
    if len(args) >= 3:
        step = args[2]
    if not isinstance(start, (int, float)) or not isinstance(step, (int, float)):
        raise CannotLower(f"a range from {start} by {step}")
    length: Dim = c.shape[0]
    if not isinstance(length, Sym):
        raise CannotLower(f"a range to {stop}")
    ref = c.node("iota", [], DType.i64, (length,), axis=0)
    out = c.cast(ref, c.dtype)
    if step != 1:
        out = c.binary("mul", out, c.ref(step, out.dtype))
    return c.binary("add", out, c.ref(start, out.dtype)) if start else out


def fill(c: Context, _x: Operand, value: Operand) -> Operand:
    """fill_ and fill: the value in x's shape."""
    return _of_value(c, value)


TABLE: dict[str, Lowering] = {
    **{f"aten.{name}": _constant(0) for name in ("zeros", "zeros_like", "new_zeros", "zero", "empty", "empty_like", "new_empty")},
    **{f"aten.{name}": _constant(1) for name in ("ones", "ones_like", "new_ones")},
    "aten.empty_permuted": _constant(0),
    "aten.empty_strided": _constant(0),
    "aten.full": full,
    "aten.full_like": full,
    "aten.new_full": new_full,
    "aten.scalar_tensor": scalar_tensor,
    "aten.fill": fill,
    "aten.arange": arange,
}
