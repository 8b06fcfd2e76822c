"""Ops on elements, each as one ONNX operator or a few."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mixplan.runtime.dtypes import DType
from mixplan.runtime.plan import Node, Value
from mixplan.targets.npu.lower.base import ARITHMETIC, Check, Lowering, attrs_of, only_dtypes
from mixplan.targets.npu.providers.base import ProviderRules

if TYPE_CHECKING:
    from mixplan.targets.npu.graph import Graph

__all__ = ["ELEMENTWISE", "activate"]

_F32 = only_dtypes(DType.f32)
_NUMBERS = only_dtypes(*ARITHMETIC)
_BOOL = only_dtypes(DType.bool)
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


_UNARY: dict[str, tuple[_Unary, Check]] = {
    "neg": (_one("Neg"), _NUMBERS),
    "abs": (_one("Abs"), _NUMBERS),
    "exp": (_one("Exp"), _F32),
    "exp2": (lambda g, x: g.op("Pow", g.number(2.0), x), _F32),
    "log": (_one("Log"), _F32),
    "sqrt": (_one("Sqrt"), _F32),
    "rsqrt": (lambda g, x: g.op("Reciprocal", g.op("Sqrt", x)), _F32),
    "reciprocal": (_one("Reciprocal"), _F32),
    "tanh": (_one("Tanh"), _F32),
    "sigmoid": (_one("Sigmoid"), _F32),
    "silu": (_silu, _F32),
    "gelu": (_gelu, _F32),
    "gelu_tanh": (_gelu_tanh, _F32),
    "relu": (_one("Relu"), _F32),
    "erf": (_one("Erf"), _F32),
    "sin": (_one("Sin"), _F32),
    "cos": (_one("Cos"), _F32),
    "floor": (_one("Floor"), _F32),
    "ceil": (_one("Ceil"), _F32),
    "round": (_one("Round"), _F32),
    "sign": (_one("Sign"), _NUMBERS),
    "log_sigmoid": (lambda g, x: g.op("Neg", g.op("Softplus", g.op("Neg", x))), _F32),
    "square": (_square, _NUMBERS),
    "isnan": (_one("IsNaN"), _F32),
    "isinf": (_one("IsInf"), _F32),
    "logical_not": (_one("Not"), _BOOL),
    "bitwise_not": (_one("Not"), _BOOL),
}
_BINARY: dict[str, tuple[_Binary, Check]] = {
    "add": (_two("Add"), _NUMBERS),
    "sub": (_two("Sub"), _NUMBERS),
    "mul": (_two("Mul"), _NUMBERS),
    "div": (_two("Div"), _F32),
    "pow": (_two("Pow"), _F32),
    "maximum": (_two("Max"), _NUMBERS),
    "minimum": (_two("Min"), _NUMBERS),
    "floor_div": (_floor_div, _F32),
    "remainder": (_remainder, _F32),
    "fmod": (lambda g, a, b: g.op("Mod", a, b, fmod=1), _F32),
    "eq": (_two("Equal"), only_dtypes(*ARITHMETIC, DType.bool)),
    "ne": (lambda g, a, b: g.op("Not", g.op("Equal", a, b)), only_dtypes(*ARITHMETIC, DType.bool)),
    "lt": (_two("Less"), _NUMBERS),
    "le": (_two("LessOrEqual"), _NUMBERS),
    "gt": (_two("Greater"), _NUMBERS),
    "ge": (_two("GreaterOrEqual"), _NUMBERS),
    "logical_and": (_two("And"), _BOOL),
    "logical_or": (_two("Or"), _BOOL),
    "logical_xor": (_two("Xor"), _BOOL),
    "bitwise_and": (_two("And"), _BOOL),
    "bitwise_or": (_two("Or"), _BOOL),
    "bitwise_xor": (_two("Xor"), _BOOL),
}
_GATES: dict[str, _Unary] = {name: _UNARY[name][0] for name in ("silu", "gelu", "gelu_tanh", "relu", "sigmoid", "tanh")} | {"relu2": _relu2}


def activate(g: Graph, name: str, x: str) -> str:
    """The activation of a gated linear."""
    return _GATES[name](g, x)


def _unary(function: _Unary) -> Callable[[Graph, Node], None]:
    return lambda g, node: g.bind(node.outputs[0], function(g, g.value(node.inputs[0])))


def _binary(function: _Binary) -> Callable[[Graph, Node], None]:
    return lambda g, node: g.bind(node.outputs[0], function(g, g.value(node.inputs[0]), g.value(node.inputs[1])))


def _where(g: Graph, node: Node) -> None:
    g.bind(node.outputs[0], g.op("Where", *(g.value(index) for index in node.inputs)))


def _cast(g: Graph, node: Node) -> None:
    g.bind(node.outputs[0], g.cast(g.value(node.inputs[0]), g.dtype(node.outputs[0]).value))


def _softplus(g: Graph, node: Node) -> None:
    attrs, x = attrs_of(node), g.value(node.inputs[0])
    scaled = g.op("Mul", x, g.number(attrs["beta"]))
    smooth = g.op("Div", g.op("Softplus", scaled), g.number(attrs["beta"]))
    g.bind(node.outputs[0], g.op("Where", g.op("Greater", scaled, g.number(attrs["threshold"])), x, smooth))


def _plain_where(node: Node, values: Sequence[Value], rules: ProviderRules) -> str:
    dtype = values[node.inputs[1]].dtype
    return "" if dtype in ARITHMETIC else f"where of {dtype.value}; the NPU takes {', '.join(one.value for one in ARITHMETIC)}"


ELEMENTWISE: dict[str, Lowering] = {
    **{name: Lowering(_unary(function), check) for name, (function, check) in _UNARY.items()},
    **{name: Lowering(_binary(function), check) for name, (function, check) in _BINARY.items()},
    "where": Lowering(_where, _plain_where),
    "cast": Lowering(_cast),
    "softplus": Lowering(_softplus, _F32),
}
