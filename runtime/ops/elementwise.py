"""Ops on elements: one input, two inputs, where, cast.

Two-input ops take equal dtypes and broadcast as numpy does; lowering puts a `cast` where dtypes differ. f16 and bf16 are only moved and
cast, never computed with. Results that overflow or are undefined are inf or nan, silently, as in torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mixplan.runtime.dtypes import DType, bf16_to_f32, f32_to_bf16
from mixplan.runtime.errors import PlanError
from mixplan.runtime.ops.activations import erf, gelu, gelu_tanh, relu, sigmoid, silu
from mixplan.runtime.ops.base import Array, OpSpec, StepContext, TypedShape
from mixplan.runtime.ops.checks import FLOATS, INTEGERS, NUMBERS, PLAIN, need, need_dtype, only
from mixplan.runtime.ops.define import CheckedAttrs, define
from mixplan.runtime.ops.shapes import broadcast, broadcast_all

__all__ = ["ELEMENTWISE"]

_Dtypes = tuple[DType, ...]
_BITS = (*INTEGERS, DType.bool)
_SIGNED = (DType.f32, DType.i64, DType.i32, DType.i16, DType.i8)


def _softplus(x: Array, beta: float = 1.0, threshold: float = 20.0) -> Array:
    scaled = x * np.float32(beta)
    return np.where(scaled > threshold, x, np.log1p(np.exp(np.minimum(scaled, np.float32(threshold)))) / np.float32(beta))


def _log_sigmoid(x: Array) -> Array:
    return np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x)))


def _power(a: Array, b: Array) -> Array:
    """a ** b; an integer to a negative power is truncated to an integer: 1 or -1 for bases of 1 and -1, else 0."""
    if a.dtype.kind == "f":
        return np.power(a, b)
    if a.dtype.kind == "u":
        return np.power(a, b)
    inverse = np.where(a == 1, 1, np.where(a == -1, np.where(b % 2 == 0, 1, -1), 0)).astype(a.dtype)
    return np.where(b < 0, inverse, np.power(a, np.maximum(b, 0)))


def _shift(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """A shift whose amount outside 0 .. bits - 1 shifts everything out (right shifts keep the sign)."""

    def shifted(a: Array, b: Array) -> Array:
        bits = a.dtype.itemsize * 8
        outside = (b < 0) | (b >= bits)
        lost = np.right_shift(a, a.dtype.type(bits - 1)) if function is np.right_shift and a.dtype.kind == "i" else np.zeros_like(a)
        return np.where(outside, lost, function(a, np.where(outside, 0, b).astype(a.dtype)))

    return shifted


# name: (function, dtypes, meaning)
_UNARY: dict[str, tuple[Callable[..., Array], _Dtypes, str]] = {
    "neg": (np.negative, _SIGNED, "-x."),
    "abs": (np.abs, NUMBERS, "|x|."),
    "exp": (np.exp, FLOATS, "e to the x."),
    "exp2": (np.exp2, FLOATS, "2 to the x."),
    "expm1": (np.expm1, FLOATS, "exp(x) - 1, exact near 0."),
    "log": (np.log, FLOATS, "Natural logarithm."),
    "log1p": (np.log1p, FLOATS, "log(1 + x), exact near 0."),
    "sqrt": (np.sqrt, FLOATS, "Square root."),
    "rsqrt": (lambda x: np.float32(1) / np.sqrt(x), FLOATS, "1 / sqrt(x)."),
    "reciprocal": (lambda x: np.float32(1) / x, FLOATS, "1 / x."),
    "tanh": (np.tanh, FLOATS, "Hyperbolic tangent."),
    "sigmoid": (sigmoid, FLOATS, "1 / (1 + exp(-x))."),
    "silu": (silu, FLOATS, "x * sigmoid(x)."),
    "gelu": (gelu, FLOATS, "x/2 * (1 + erf(x / sqrt 2))."),
    "gelu_tanh": (gelu_tanh, FLOATS, "x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))."),
    "relu": (relu, NUMBERS, "max(x, 0)."),
    "erf": (erf, FLOATS, "The error function."),
    "sin": (np.sin, FLOATS, "Sine, x in radians."),
    "cos": (np.cos, FLOATS, "Cosine, x in radians."),
    "floor": (np.floor, FLOATS, "The largest integer not above x."),
    "ceil": (np.ceil, FLOATS, "The smallest integer not below x."),
    "round": (np.rint, FLOATS, "The nearest integer, halves to even."),
    "sign": (np.sign, _SIGNED, "-1, 0 or 1."),
    "log_sigmoid": (_log_sigmoid, FLOATS, "log(sigmoid(x)), without underflow."),
    "logical_not": (np.logical_not, PLAIN, "Whether x is 0."),
    "bitwise_not": (np.invert, _BITS, "All bits flipped; for bool the opposite."),
    "square": (np.square, NUMBERS, "x * x."),
    "isnan": (np.isnan, FLOATS, "Whether x is not a number."),
    "isinf": (np.isinf, FLOATS, "Whether x is infinite."),
}
_BINARY: dict[str, tuple[Callable[..., Array], _Dtypes, str]] = {
    "add": (np.add, NUMBERS, "a + b."),
    "sub": (np.subtract, NUMBERS, "a - b."),
    "mul": (np.multiply, NUMBERS, "a * b."),
    "div": (np.divide, FLOATS, "a / b."),
    "pow": (_power, NUMBERS, "a to the b. An integer to a negative power is truncated to an integer (0, or 1 and -1 for those bases)."),
    "maximum": (np.maximum, PLAIN, "The larger; nan where either is nan."),
    "minimum": (np.minimum, PLAIN, "The smaller; nan where either is nan."),
    "floor_div": (np.floor_divide, NUMBERS, "a / b rounded down. Integers divided by 0 give 0."),
    "remainder": (np.remainder, NUMBERS, "a - floor(a / b) * b, which has the sign of b. For integers and b = 0 it is 0."),
    "fmod": (np.fmod, NUMBERS, "a - trunc(a / b) * b, which has the sign of a. For integers and b = 0 it is 0."),
    "atan2": (np.arctan2, FLOATS, "The angle of the point (b, a), in radians."),
    "eq": (np.equal, PLAIN, "a == b."),
    "ne": (np.not_equal, PLAIN, "a != b."),
    "lt": (np.less, PLAIN, "a < b."),
    "le": (np.less_equal, PLAIN, "a <= b."),
    "gt": (np.greater, PLAIN, "a > b."),
    "ge": (np.greater_equal, PLAIN, "a >= b."),
    "logical_and": (np.logical_and, PLAIN, "Whether both are nonzero."),
    "logical_or": (np.logical_or, PLAIN, "Whether either is nonzero."),
    "logical_xor": (np.logical_xor, PLAIN, "Whether exactly one is nonzero."),
    "bitwise_and": (np.bitwise_and, _BITS, "Bits set in both."),
    "bitwise_or": (np.bitwise_or, _BITS, "Bits set in either."),
    "bitwise_xor": (np.bitwise_xor, _BITS, "Bits set in one."),
    "shift_left": (_shift(np.left_shift), INTEGERS, "Bits of a moved up by b; 0 where b is negative or not below the width."),
    "shift_right": (_shift(np.right_shift), INTEGERS, "Bits of a moved down by b, keeping the sign; all sign where b is out of range."),
}
_TO_BOOL = frozenset(("logical_not", "isnan", "isinf", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor"))


def _unary(name: str, function: Callable[..., Array], dtypes: _Dtypes, doc: str) -> OpSpec:
    def infer(inputs: Sequence[TypedShape | None], attrs: CheckedAttrs, declared: Sequence[TypedShape]) -> Sequence[TypedShape]:
        shape = need_dtype(name, "x", inputs[0], dtypes)
        return [(DType.bool if name in _TO_BOOL else need(name, "x", inputs[0])[0], shape)]

    def reference(ctx: StepContext, attrs: CheckedAttrs, inputs: Sequence[Any]) -> Sequence[Array]:
        with np.errstate(all="ignore"):
            return [np.asarray(function(inputs[0], **attrs))]

    if name != "softplus":
        return define(name, ("x",), infer, reference, doc)
    return define(name, ("x",), infer, reference, doc, attrs={"beta": float, "threshold": float}, defaults={"beta": 1.0, "threshold": 20.0})


def _binary(name: str, function: Callable[..., Array], dtypes: _Dtypes, doc: str) -> OpSpec:
    def infer(inputs: Sequence[TypedShape | None], attrs: CheckedAttrs, declared: Sequence[TypedShape]) -> Sequence[TypedShape]:
        shape = broadcast(need_dtype(name, "a", inputs[0], dtypes), need_dtype(name, "b", inputs[1], dtypes))
        dtype, other = need(name, "a", inputs[0])[0], need(name, "b", inputs[1])[0]
        if dtype is not other:
            raise PlanError(f"Op {name}: inputs are {dtype.value} and {other.value}; both must have one dtype.", hint="Insert a cast.")
        return [(DType.bool if name in _TO_BOOL else dtype, shape)]

    def reference(ctx: StepContext, attrs: CheckedAttrs, inputs: Sequence[Any]) -> Sequence[Array]:
        with np.errstate(all="ignore"):
            return [np.asarray(function(inputs[0], inputs[1]))]

    return define(name, ("a", "b"), infer, reference, doc)


def _where_infer(inputs: Sequence[TypedShape | None], attrs: CheckedAttrs, declared: Sequence[TypedShape]) -> Sequence[TypedShape]:
    condition = need_dtype("where", "cond", inputs[0], (DType.bool,))
    (dtype, a), (other, b) = need("where", "a", inputs[1]), need("where", "b", inputs[2])
    if dtype is not other:
        raise PlanError(f"Op where: inputs are {dtype.value} and {other.value}; both must have one dtype.", hint="Insert a cast.")
    return [(dtype, broadcast_all([condition, a, b]))]


def _where(ctx: StepContext, attrs: CheckedAttrs, inputs: Sequence[Any]) -> Sequence[Array]:
    return [np.where(*inputs)]


def _cast_infer(inputs: Sequence[TypedShape | None], attrs: CheckedAttrs, declared: Sequence[TypedShape]) -> Sequence[TypedShape]:
    return [(only("cast", declared)[0], need("cast", "x", inputs[0])[1])]


def _cast(ctx: StepContext, attrs: CheckedAttrs, inputs: Sequence[Any]) -> Sequence[Array]:
    target = ctx.out_dtypes[0]
    # bf16 is held as its bits: the only uint16 that a plan knows.
    x = bf16_to_f32(inputs[0]) if inputs[0].dtype == np.uint16 else inputs[0]
    with np.errstate(all="ignore"):
        if target is DType.bf16:
            return [np.asarray(f32_to_bf16(x.astype(np.float32)))]
        return [x.astype(target.numpy)]


ELEMENTWISE: tuple[OpSpec, ...] = (
    *(_unary(name, *entry) for name, entry in _UNARY.items()),
    _unary("softplus", _softplus, FLOATS, "log(1 + exp(beta * x)) / beta; x itself where beta * x > threshold."),
    *(_binary(name, *entry) for name, entry in _BINARY.items()),
    define("where", ("cond", "a", "b"), _where_infer, _where, "a where cond (bool) is true, else b. Any dtype; all three broadcast."),
    define(
        "cast",
        ("x",),
        _cast_infer,
        _cast,
        "x converted to the output's declared dtype: floats to integers toward 0, to narrower floats to the nearest (halves to even), "
        "to bool whether it is nonzero. Out-of-range floats give any integer.",
    ),
)
