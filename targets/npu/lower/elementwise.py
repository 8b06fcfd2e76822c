"""Ops on elements, each as one ONNX operator or a few."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mixplan.runtime.dtypes import DType
from mixplan.runtime.plan import Node, Value
from mixplan.targets.npu.lower.angle import angle
from mixplan.targets.npu.lower.base import ARITHMETIC, Lowering, attrs_of, only_dtypes
from mixplan.targets.npu.lower.whole_numbers import BOOL_BINARY, BOOL_UNARY, INTEGER_BINARY, INTEGER_UNARY
from mixplan.targets.npu.providers.base import ProviderRules

if TYPE_CHECKING:
    from mixplan.targets.npu.graph import Graph

__all__ = ["ELEMENTWISE", "activate"]

_BITS = ("bitwise_and", "bitwise_or", "bitwise_xor")
_Unary = Callable[["Graph", str], str]
_Binary = Callable[["Graph", str, str], str]


def _one(kind: str) -> _Unary:
    return lambda g, x: g.op(kind, x)


def _two(kind: str) -> _Binary:
    return lambda g, a, b: g.op(kind, a, b)


def _silu(g: Graph, x: str) -> str:
    if g.rules.rough_sigmoid:
        return g.op("Div", x, g.op("Add", g.op("Exp", g.op("Neg", x)), g.number(1.0)))
    return g.op("Mul", x, g.op("Sigmoid", x))


def _gelu(g: Graph, x: str) -> str:
    inner = g.op("Erf", g.op("Div", x, g.number(math.sqrt(2.0))))
    return g.op("Mul", g.op("Mul", x, g.number(0.5)), g.op("Add", inner, g.number(1.0)))


def _gelu_tanh(g: Graph, x: str) -> str:
    cube = g.op("Mul", g.op("Mul", x, x), x)
    inner = g.op("Mul", g.op("Add", x, g.op("Mul", cube, g.number(0.044715))), g.number(math.sqrt(2.0 / math.pi)))
    return g.op("Mul", g.op("Mul", x, g.number(0.5)), g.op("Add", g.op("Tanh", inner), g.number(1.0)))


def _square(g: Graph, x: str) -> str:
    return g.op("Mul", x, x)


def _relu2(g: Graph, x: str) -> str:
    return _square(g, g.op("Relu", x))


def _other_side(g: Graph, rest: str, b: str) -> str:
    """Whether what fmod leaves is not 0 and has another sign than the divisor."""
    zero = g.number(0.0)
    return g.op("And", g.op("Not", g.op("Equal", rest, zero)), g.op("Xor", g.op("Less", rest, zero), g.op("Less", b, zero)))


def _floor_div(g: Graph, a: str, b: str) -> str:
    """By way of fmod, which is exact and right for infinities."""
    rest = g.op("Mod", a, b, fmod=1)
    whole = g.op("Round", g.op("Div", g.op("Sub", a, rest), b))
    below = g.op("Where", _other_side(g, rest, b), g.op("Sub", whole, g.number(1.0)), whole)
    return g.op("Where", g.op("Equal", b, g.number(0.0)), g.op("Div", a, b), below)


def _remainder(g: Graph, a: str, b: str) -> str:
    rest = g.op("Mod", a, b, fmod=1)
    return g.op("Where", _other_side(g, rest, b), g.op("Add", rest, b), rest)


def _expm1(g: Graph, x: str) -> str:
    """Near 0 by way of tanh, which does not cancel there: 2 t / (1 - t) with t = tanh(x / 2)."""
    half = g.op("Tanh", g.op("Mul", x, g.number(0.5)))
    near = g.op("Div", g.op("Mul", half, g.number(2.0)), g.op("Sub", g.number(1.0), half))
    return g.op("Where", g.op("Less", g.op("Abs", x), g.number(0.5)), near, g.op("Sub", g.op("Exp", x), g.number(1.0)))


def _log1p(g: Graph, x: str) -> str:
    """log(u) x / (u - 1) with u = 1 + x as it is rounded (Higham: Accuracy and Stability of Numerical Algorithms, 2002, 1.14.1)."""
    one = g.number(1.0)
    u = g.op("Add", x, one)
    above = g.op("Sub", u, one)
    near = g.op("Div", g.op("Mul", g.op("Log", u), x), above)
    near = g.op("Where", g.op("Equal", above, g.number(0.0)), x, near)
    return g.op("Where", g.op("Less", g.op("Abs", x), one), near, g.op("Log", u))


def _truth(kind: str) -> _Binary:
    return lambda g, a, b: g.op(kind, g.cast(a, "bool"), g.cast(b, "bool"))


_UNARY: dict[str, _Unary] = {
    "neg": _one("Neg"),
    "abs": _one("Abs"),
    "exp": _one("Exp"),
    "exp2": lambda g, x: g.op("Pow", g.number(2.0), x),
    "expm1": _expm1,
    "log": _one("Log"),
    "log1p": _log1p,
    "sqrt": _one("Sqrt"),
    "rsqrt": lambda g, x: g.op("Reciprocal", g.op("Sqrt", x)),
    "reciprocal": _one("Reciprocal"),
    "tanh": _one("Tanh"),
    "sigmoid": _one("Sigmoid"),
    "silu": _silu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": _one("Relu"),
    "erf": _one("Erf"),
    "sin": _one("Sin"),
    "cos": _one("Cos"),
    "floor": _one("Floor"),
    "ceil": _one("Ceil"),
    "round": _one("Round"),
    "sign": _one("Sign"),
    "log_sigmoid": lambda g, x: g.op("Neg", g.op("Softplus", g.op("Neg", x))),
    "square": _square,
    "isnan": _one("IsNaN"),
    "isinf": _one("IsInf"),
    "logical_not": lambda g, x: g.op("Not", g.cast(x, "bool")),
}
_BINARY: dict[str, _Binary] = {
    "add": _two("Add"),
    "sub": _two("Sub"),
    "mul": _two("Mul"),
    "div": _two("Div"),
    "pow": _two("Pow"),
    "atan2": angle,
    "maximum": _two("Max"),
    "minimum": _two("Min"),
    "floor_div": _floor_div,
    "remainder": _remainder,
    "fmod": lambda g, a, b: g.op("Mod", a, b, fmod=1),
    "eq": _two("Equal"),
    "ne": lambda g, a, b: g.op("Not", g.op("Equal", a, b)),
    "lt": _two("Less"),
    "le": _two("LessOrEqual"),
    "gt": _two("Greater"),
    "ge": _two("GreaterOrEqual"),
    "logical_and": _truth("And"),
    "logical_or": _truth("Or"),
    "logical_xor": _truth("Xor"),
}
_GATES: dict[str, _Unary] = {name: _UNARY[name] for name in ("silu", "gelu", "gelu_tanh", "relu", "sigmoid", "tanh")} | {"relu2": _relu2}


def activate(g: Graph, name: str, x: str) -> str:
    """The activation of a gated linear."""
    return _GATES[name](g, x)


def _dtypes(op: str) -> tuple[DType, ...]:
    """What an op is lowered for."""
    floats = (DType.f32,) if op in _UNARY or op in _BINARY else ()
    integers = (DType.i64, DType.i32) if op in INTEGER_UNARY or op in INTEGER_BINARY else ()
    bools = (DType.bool,) if op in BOOL_UNARY or op in BOOL_BINARY else ()
    return (*floats, *integers, *bools)


def _check(node: Node, values: Sequence[Value], rules: ProviderRules) -> str:
    allowed = _dtypes(node.op)
    if rules.opset < 18 and node.op in _BITS and values[node.inputs[0]].dtype is not DType.bool:
        return f"bits of integers, which ONNX has from opset 18 on; the provider {rules.name} takes {rules.opset} ({rules.source})"
    return only_dtypes(*allowed)(node, values, rules)


def _unary(g: Graph, node: Node) -> None:
    x, dtype = g.value(node.inputs[0]), g.dtype(node.inputs[0])
    if dtype is DType.f32:
        made = _UNARY[node.op](g, x)
    else:
        made = (BOOL_UNARY if dtype is DType.bool else INTEGER_UNARY)[node.op](g, x, dtype.value)
    g.bind(node.outputs[0], made)


def _binary(g: Graph, node: Node) -> None:
    a, b, dtype = g.value(node.inputs[0]), g.value(node.inputs[1]), g.dtype(node.inputs[0])
    if dtype is DType.f32:
        made = _BINARY[node.op](g, a, b)
    else:
        made = (BOOL_BINARY if dtype is DType.bool else INTEGER_BINARY)[node.op](g, a, b, dtype.value)
    g.bind(node.outputs[0], made)


def _where(g: Graph, node: Node) -> None:
    condition, a, b = (g.value(index) for index in node.inputs)
    if g.dtype(node.inputs[1]) is not DType.bool:
        g.bind(node.outputs[0], g.op("Where", condition, a, b))
        return
    g.bind(node.outputs[0], g.op("Or", g.op("And", condition, a), g.op("And", g.op("Not", condition), b)))


def _cast(g: Graph, node: Node) -> None:
    g.bind(node.outputs[0], g.cast(g.value(node.inputs[0]), g.dtype(node.outputs[0]).value))


def _softplus(g: Graph, node: Node) -> None:
    attrs, x = attrs_of(node), g.value(node.inputs[0])
    scaled = g.op("Mul", x, g.number(attrs["beta"]))
    smooth = g.op("Div", g.op("Softplus", scaled), g.number(attrs["beta"]))
    g.bind(node.outputs[0], g.op("Where", g.op("Greater", scaled, g.number(attrs["threshold"])), x, smooth))


def _where_check(node: Node, values: Sequence[Value], rules: ProviderRules) -> str:
    dtype, allowed = values[node.inputs[1]].dtype, (*ARITHMETIC, DType.bool)
    return "" if dtype in allowed else f"where of {dtype.value}; the NPU takes {', '.join(one.value for one in allowed)}"


ELEMENTWISE: dict[str, Lowering] = {
    **{name: Lowering(_unary, _check) for name in {**_UNARY, **INTEGER_UNARY, **BOOL_UNARY}},
    **{name: Lowering(_binary, _check) for name in {**_BINARY, **INTEGER_BINARY, **BOOL_BINARY}},
    "where": Lowering(_where, _where_check),
    "cast": Lowering(_cast),
    "softplus": Lowering(_softplus, only_dtypes(DType.f32)),
}
