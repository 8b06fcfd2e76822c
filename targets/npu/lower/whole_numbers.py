"""Elementwise ops on integers of 32 and 64 bits, and on booleans.

onnxruntime divides integers as the CPU does, where a division by 0, or of the smallest number by -1, ends the process; so divisors that
could do that are replaced before, and the results after.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from mixplan.targets.npu.graph import Graph

__all__ = ["BOOL_BINARY", "BOOL_UNARY", "INTEGER_BINARY", "INTEGER_UNARY"]

_Unary = Callable[["Graph", str, str], str]
_Binary = Callable[["Graph", str, str, str], str]
"""Graph, names of the inputs, and their element type."""


def _one(kind: str) -> _Unary:
    return lambda g, x, _: g.op(kind, x)


def _two(kind: str) -> _Binary:
    return lambda g, a, b, _: g.op(kind, a, b)


def _safe(g: Graph, b: str, kind: str) -> str:
    """A divisor with 1 in place of 0 and -1."""
    odd = g.op("Or", g.op("Equal", b, g.number(0, kind)), g.op("Equal", b, g.number(-1, kind)))
    return g.op("Where", odd, g.number(1, kind), b)


def _modulo(fmod: int) -> _Binary:
    return lambda g, a, b, kind: g.op("Mod", a, _safe(g, b, kind), fmod=fmod)


def _floor_div(g: Graph, a: str, b: str, kind: str) -> str:
    safe = _safe(g, b, kind)
    whole = g.op("Div", g.op("Sub", a, g.op("Mod", a, safe)), safe)
    turned = g.op("Where", g.op("Equal", b, g.number(-1, kind)), g.op("Neg", a), whole)
    return g.op("Where", g.op("Equal", b, g.number(0, kind)), g.number(0, kind), turned)


def _pow(g: Graph, a: str, b: str, kind: str) -> str:
    """A negative power is truncated to an integer, as the op says."""
    even = g.op("Equal", g.op("Mod", b, g.number(2, kind)), g.number(0, kind))
    turned = g.op("Where", even, g.number(1, kind), g.number(-1, kind))
    inverse = g.op("Where", g.op("Equal", a, g.number(-1, kind)), turned, g.number(0, kind))
    inverse = g.op("Where", g.op("Equal", a, g.number(1, kind)), g.number(1, kind), inverse)
    zero = g.number(0, kind)
    return g.op("Where", g.op("Less", b, zero), inverse, g.op("Pow", a, g.op("Max", b, zero)))


def _outside(g: Graph, b: str, kind: str) -> str:
    bits = g.number(32 if kind == "i32" else 64, kind)
    return g.op("Or", g.op("Less", b, g.number(0, kind)), g.op("GreaterOrEqual", b, bits))


def _moved(g: Graph, a: str, b: str, direction: str) -> str:
    """BitShift, which is defined for unsigned integers."""
    return g.cast(g.op("BitShift", g.cast(g.cast(a, "i64"), "u64"), g.cast(b, "u64"), direction=direction), "i64")


def _shift_left(g: Graph, a: str, b: str, kind: str) -> str:
    lost, zero = _outside(g, b, kind), g.number(0, kind)
    moved = g.cast(_moved(g, a, g.op("Where", lost, zero, b), "LEFT"), kind)
    return g.op("Where", lost, zero, moved)


def _shift_right(g: Graph, a: str, b: str, kind: str) -> str:
    """Of a negative number, the complement is moved."""
    lost, zero, minus = _outside(g, b, kind), g.number(0, kind), g.number(-1, kind)
    negative = g.op("Less", a, zero)
    moved = g.cast(_moved(g, g.op("Where", negative, g.op("Sub", minus, a), a), g.op("Where", lost, zero, b), "RIGHT"), kind)
    moved = g.op("Where", lost, zero, moved)
    return g.op("Where", negative, g.op("Sub", minus, moved), moved)


def _bits(kind: str) -> _Binary:
    return lambda g, a, b, _: g.op(f"Bitwise{kind}", a, b)


def _truth(kind: str) -> _Binary:
    return lambda g, a, b, _: g.op(kind, g.cast(a, "bool"), g.cast(b, "bool"))


INTEGER_UNARY: dict[str, _Unary] = {
    "neg": _one("Neg"),
    "abs": _one("Abs"),
    "sign": _one("Sign"),
    "square": lambda g, x, _: g.op("Mul", x, x),
    "relu": lambda g, x, kind: g.op("Max", x, g.number(0, kind)),
    "logical_not": lambda g, x, _: g.op("Not", g.cast(x, "bool")),
    "bitwise_not": lambda g, x, kind: g.op("Sub", g.array(np.asarray(-1, np.int32 if kind == "i32" else np.int64)), x),
}
INTEGER_BINARY: dict[str, _Binary] = {
    "add": _two("Add"),
    "sub": _two("Sub"),
    "mul": _two("Mul"),
    "pow": _pow,
    "maximum": _two("Max"),
    "minimum": _two("Min"),
    "floor_div": _floor_div,
    "remainder": _modulo(0),
    "fmod": _modulo(1),
    "eq": _two("Equal"),
    "ne": lambda g, a, b, _: g.op("Not", g.op("Equal", a, b)),
    "lt": _two("Less"),
    "le": _two("LessOrEqual"),
    "gt": _two("Greater"),
    "ge": _two("GreaterOrEqual"),
    "logical_and": _truth("And"),
    "logical_or": _truth("Or"),
    "logical_xor": _truth("Xor"),
    "bitwise_and": _bits("And"),
    "bitwise_or": _bits("Or"),
    "bitwise_xor": _bits("Xor"),
    "shift_left": _shift_left,
    "shift_right": _shift_right,
}
BOOL_UNARY: dict[str, _Unary] = {"logical_not": _one("Not"), "bitwise_not": _one("Not")}
BOOL_BINARY: dict[str, _Binary] = {
    "eq": _two("Equal"),
    "ne": _two("Xor"),
    "lt": lambda g, a, b, _: g.op("And", g.op("Not", a), b),
    "le": lambda g, a, b, _: g.op("Or", g.op("Not", a), b),
    "gt": lambda g, a, b, _: g.op("And", a, g.op("Not", b)),
    "ge": lambda g, a, b, _: g.op("Or", a, g.op("Not", b)),
    "maximum": _two("Or"),
    "minimum": _two("And"),
    "logical_and": _two("And"),
    "logical_or": _two("Or"),
    "logical_xor": _two("Xor"),
    "bitwise_and": _two("And"),
    "bitwise_or": _two("Or"),
    "bitwise_xor": _two("Xor"),
}
