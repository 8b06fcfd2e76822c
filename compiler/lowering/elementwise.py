"""Elementwise arithmetic, comparison, selection and dtype changes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from mixplan.compiler.lowering.context import CannotLower, Context
from mixplan.compiler.lowering.operands import Operand, Ref
from mixplan.runtime.dtypes import DType

__all__ = ["TABLE"]

Lowering = Callable[..., Operand]


def _float_unary(op: str) -> Lowering:
    """An op whose result is a float, whatever it is given."""

    def lower(c: Context, x: Operand) -> Operand:
        return c.unary(op, c.ref(x, DType.f32))

    return lower


def _same_unary(op: str) -> Lowering:
    """An op that keeps the dtype; on integers, floor and its kind change nothing."""

    def lower(c: Context, x: Operand) -> Operand:
        ref = c.ref(x)
        if op in ("floor", "ceil", "round") and ref.dtype is not DType.f32:
            return ref
        return c.unary(op, ref)

    return lower


def _arithmetic(op: str) -> Lowering:
    def lower(c: Context, a: Operand, b: Operand, *, alpha: int | float = 1) -> Operand:
        left, right = c.promote(a, b)
        if alpha != 1:
            right = c.binary("mul", right, c.ref(alpha, right.dtype))
        if left.dtype is DType.bool:
            return c.binary({"add": "logical_or", "mul": "logical_and"}.get(op, op), left, right)
        return c.binary(op, left, right)

    return lower


def _comparison(op: str) -> Lowering:
    def lower(c: Context, a: Operand, b: Operand) -> Operand:
        left, right = c.promote(a, b)
        return c.binary(op, left, right, DType.bool)

    return lower


def _logical(op: str) -> Lowering:
    def lower(c: Context, a: Operand, b: Operand) -> Operand:
        return c.binary(op, c.ref(a, DType.bool), c.ref(b, DType.bool))

    return lower


def _bitwise(name: str) -> Lowering:
    def lower(c: Context, a: Operand, b: Operand) -> Operand:
        left, right = c.promote(a, b)
        return c.binary(("logical_" if left.dtype is DType.bool else "bitwise_") + name, left, right)

    return lower


def logical_not(c: Context, x: Operand) -> Operand:
    """Not, on the truth of each element."""
    return c.unary("logical_not", c.ref(x, DType.bool))


def bitwise_not(c: Context, x: Operand) -> Operand:
    """Not, on the bits; on booleans the logical one."""
    ref = c.ref(x)
    return c.unary("logical_not" if ref.dtype is DType.bool else "bitwise_not", ref)


def rsub(c: Context, a: Operand, b: Operand, alpha: int | float = 1) -> Operand:
    """b - alpha * a."""
    if alpha != 1:
        a = _arithmetic("mul")(c, a, alpha)
    return _arithmetic("sub")(c, b, a)


def div(c: Context, a: Operand, b: Operand, *, rounding_mode: str | None = None) -> Operand:
    """True division gives floats; "floor" and "trunc" keep integers."""
    left, right = c.promote(a, b)
    if rounding_mode == "floor":
        return floor_divide(c, left, right)
    if rounding_mode == "trunc":
        if left.dtype is not DType.f32:
            return _truncated(c, left, right)
        quotient = c.binary("div", left, right)
        return _trunc(c, quotient)
    return c.binary("div", c.cast(left, DType.f32), c.cast(right, DType.f32))


def floor_divide(c: Context, a: Operand, b: Operand) -> Operand:
    """Division rounded towards minus infinity."""
    left, right = c.promote(a, b)
    if left.dtype is DType.f32:
        return c.unary("floor", c.binary("div", left, right))
    return c.binary("floor_div", left, right)


def _truncated(c: Context, a: Ref, b: Ref) -> Ref:
    """Integer division towards zero: (a - fmod(a, b)) divides b exactly."""
    return c.binary("floor_div", c.binary("sub", a, c.binary("fmod", a, b)), b)


def _trunc(c: Context, x: Ref) -> Ref:
    return c.binary("mul", c.unary("sign", x), c.unary("floor", c.unary("abs", x)))


def trunc(c: Context, x: Operand) -> Operand:
    """Rounding towards zero."""
    ref = c.ref(x)
    return _trunc(c, ref) if ref.dtype is DType.f32 else ref


def power(c: Context, a: Operand, b: Operand) -> Operand:
    """a ** b, with the exponents that models use spelled as simpler ops."""
    if isinstance(a, Ref) and isinstance(b, (int, float)) and not isinstance(b, bool):
        dtype = c.dtype
        x = c.ref(a, dtype)
        if b == 1:
            return x
        if b == 2:
            return c.unary("square", x)
        if b == 3:
            return c.binary("mul", c.unary("square", x), x)
        if dtype is DType.f32 and b in (0.5, -0.5, -1):
            return c.unary({0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}[b], x)
    left, right = c.promote(a, b)
    return c.binary("pow", left, right)


def clamp(c: Context, x: Operand, low: Operand = None, high: Operand = None, **names: Operand) -> Operand:
    """x limited to [low, high], either of them None."""
    low, high = names.get("min", low), names.get("max", high)
    out = c.ref(x, c.dtype)
    if low is not None:
        out = c.binary("maximum", out, c.ref(low, out.dtype))
    if high is not None:
        out = c.binary("minimum", out, c.ref(high, out.dtype))
    return out


def clamp_max(c: Context, x: Operand, high: Operand) -> Operand:
    """x, at most `high`."""
    return clamp(c, x, None, high)


def where(c: Context, cond: Operand, a: Operand, b: Operand) -> Operand:
    """a where cond, else b."""
    left, right = c.promote(a, b)
    test = c.ref(cond, DType.bool)
    return c.node("where", [test, left, right], left.dtype, c.broadcast(test.shape, left.shape, right.shape))


def masked_fill(c: Context, x: Operand, mask: Operand, value: Operand) -> Operand:
    """x with `value` where mask."""
    ref = c.ref(x)
    test = c.ref(mask, DType.bool)
    return c.node("where", [test, c.ref(value, ref.dtype), ref], ref.dtype, c.broadcast(test.shape, ref.shape))


def to(c: Context, x: Operand, *_: Any, **__: Any) -> Operand:
    """Any change of dtype, layout or device: only the dtype matters."""
    return c.ref(x, c.dtype)


def same(c: Context, x: Operand, *_: Any, **__: Any) -> Operand:
    """Ops that give their input."""
    return x


def gelu(c: Context, x: Operand, *, approximate: str = "none") -> Operand:
    """GELU by erf, or by tanh."""
    return c.unary("gelu_tanh" if approximate == "tanh" else "gelu", c.ref(x, DType.f32))


def softplus(c: Context, x: Operand, beta: float = 1.0, threshold: float = 20.0) -> Operand:
    """log(1 + exp(beta * x)) / beta, x itself above the threshold."""
    return c.unary("softplus", c.ref(x, DType.f32), beta=float(beta), threshold=float(threshold))


def leaky_relu(c: Context, x: Operand, slope: float = 0.01) -> Operand:
    """x where positive, else slope * x."""
    ref = c.ref(x, DType.f32)
    scaled = c.binary("mul", ref, c.ref(float(slope), DType.f32))
    return c.node("where", [c.binary("gt", ref, c.ref(0.0, DType.f32), DType.bool), ref, scaled], DType.f32, ref.shape)


def elu(c: Context, x: Operand, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Operand:
    """scale * x where positive, else scale * alpha * (exp(input_scale * x) - 1)."""
    ref = c.ref(x, DType.f32)

    def times(value: Ref, factor: float) -> Ref:
        return value if factor == 1 else c.binary("mul", value, c.ref(float(factor), DType.f32))

    negative = times(c.unary("expm1", times(ref, input_scale)), alpha * scale)
    test = c.binary("gt", ref, c.ref(0.0, DType.f32), DType.bool)
    return c.node("where", [test, times(ref, scale), negative], DType.f32, ref.shape)


def lerp(c: Context, a: Operand, b: Operand, weight: Operand) -> Operand:
    """a + weight * (b - a)."""
    left, right = c.promote(a, b)
    return c.binary("add", left, c.binary("mul", c.ref(weight, left.dtype), c.binary("sub", right, left)))


def addcmul(c: Context, x: Operand, a: Operand, b: Operand, *, value: float = 1) -> Operand:
    """x + value * a * b."""
    base, left, right = c.promote(x, a, b)
    scaled = c.binary("mul", left, right)
    if value != 1:
        scaled = c.binary("mul", scaled, c.ref(value, scaled.dtype))
    return c.binary("add", base, scaled)


def tan(c: Context, x: Operand) -> Operand:
    """sin / cos."""
    ref = c.ref(x, DType.f32)
    return c.binary("div", c.unary("sin", ref), c.unary("cos", ref))


def log_base(base: float) -> Lowering:
    """A logarithm of another base."""

    def lower(c: Context, x: Operand) -> Operand:
        return c.binary("mul", c.unary("log", c.ref(x, DType.f32)), c.ref(1.0 / math.log(base), DType.f32))

    return lower


def dropout(c: Context, x: Operand, p: float = 0.5, train: bool = False) -> Operand:
    """Nothing at inference; refused in training mode."""
    if train and p:
        raise CannotLower("dropout in training mode; call model.eval() first")
    return x


# fmt: off
_FLOAT = {
    **{op: op for op in ("exp", "exp2", "expm1", "log", "log1p", "sqrt", "rsqrt", "reciprocal")},
    **{op: op for op in ("tanh", "sigmoid", "silu", "erf", "sin", "cos")},
    "log_sigmoid": "log_sigmoid", "special_expm1": "expm1", "special_erf": "erf", "special_log1p": "log1p",
}
_SAME = ("neg", "abs", "relu", "floor", "ceil", "round", "sign", "square")
_ARITHMETIC = {
    **{op: op for op in ("add", "sub", "mul", "remainder", "fmod", "maximum", "minimum", "atan2")},
    "multiply": "mul", "subtract": "sub", "bitwise_left_shift": "shift_left", "bitwise_right_shift": "shift_right",
    "__lshift__": "shift_left", "__rshift__": "shift_right",
    "max.other": "maximum", "min.other": "minimum",
}
_COMPARE = {
    **{op: op for op in ("eq", "ne", "lt", "le", "gt", "ge")},
    "not_equal": "ne", "greater": "gt", "less": "lt", "greater_equal": "ge", "less_equal": "le",
}
_NOTHING = ("alias", "contiguous", "clone", "detach", "lift_fresh_copy", "lift_fresh", "positive", "real", "resolve_conj", "resolve_neg")
# fmt: on

TABLE: dict[str, Lowering] = {
    **{f"aten.{name}": _float_unary(op) for name, op in _FLOAT.items()},
    **{f"aten.{op}": _same_unary(op) for op in _SAME},
    **{f"aten.{name}": _arithmetic(op) for name, op in _ARITHMETIC.items()},
    **{f"aten.{name}": _comparison(op) for name, op in _COMPARE.items()},
    **{f"aten.{name}": same for name in _NOTHING},
    **{f"aten.logical_{name}": _logical(f"logical_{name}") for name in ("and", "or", "xor")},
    **{f"aten.bitwise_{name}": _bitwise(name) for name in ("and", "or", "xor")},
    **{f"aten.__{name}__": _bitwise(name) for name in ("and", "or", "xor")},
    "aten.logical_not": logical_not,
    "aten.bitwise_not": bitwise_not,
    "aten.isnan": lambda c, x: c.node("isnan", [c.ref(x, DType.f32)], DType.bool, c.shape),
    "aten.isinf": lambda c, x: c.node("isinf", [c.ref(x, DType.f32)], DType.bool, c.shape),
    "aten.rsub": rsub,
    "aten.div": div,
    "aten.true_divide": div,
    "aten.divide": div,
    "aten.floor_divide": floor_divide,
    "aten.trunc": trunc,
    "aten.pow": power,
    "aten.clamp": clamp,
    "aten.clip": clamp,
    "aten.clamp_min": clamp,
    "aten.clamp_max": clamp_max,
    "aten.hardtanh": lambda c, x, low=-1.0, high=1.0: clamp(c, x, low, high),
    "aten.relu6": lambda c, x: clamp(c, x, 0.0, 6.0),
    "aten.where.self": where,
    "aten.where.ScalarSelf": where,
    "aten.where.ScalarOther": where,
    "aten.where.Scalar": where,
    "aten.masked_fill": masked_fill,
    "aten.to": to,
    "aten._to_copy": to,
    "aten.type_as": to,
    "aten.float": to,
    "aten.gelu": gelu,
    "aten.softplus": softplus,
    "aten.leaky_relu": leaky_relu,
    "aten.elu": elu,
    "aten.lerp": lerp,
    "aten.addcmul": addcmul,
    "aten.tan": tan,
    "aten.log2": log_base(2.0),
    "aten.log10": log_base(10.0),
    "aten.dropout": dropout,
    "prims.convert_element_type": to,
}
