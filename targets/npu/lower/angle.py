"""The angle of a point, which ONNX has no operator for."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mixplan.targets.npu.graph import Graph

__all__ = ["angle"]


def angle(g: Graph, a: str, b: str) -> str:
    """Of the point (b, a), by its half: 2 atan(a / (r + b)) for b > 0 and 2 atan((r - b) / a) else, with r the point's distance from 0.

    Both sides are divided by the larger one before, so that no square overflows; where that is infinite, what is finite counts as 0. On
    the axis, the signs of zeros decide, as C's atan2 has it.
    """
    zero, one = g.number(0.0), g.number(1.0)
    largest = g.op("Max", g.op("Abs", a), g.op("Abs", b))
    scale = g.op("Where", g.op("Greater", largest, zero), largest, one)
    y, x = (_scaled(g, side, scale) for side in (a, b))
    length = g.op("Sqrt", g.op("Add", g.op("Mul", x, x), g.op("Mul", y, y)))
    right, flat = g.op("Greater", x, zero), g.op("Equal", y, zero)
    below = g.op("Where", right, g.op("Add", length, x), g.op("Where", flat, one, y))
    half = g.op("Atan", g.op("Div", g.op("Where", right, y, g.op("Sub", length, x)), below))
    on_axis = g.op("Where", _negative(g, b), g.number(math.pi), zero)
    on_axis = g.op("Where", _negative(g, a), g.op("Neg", on_axis), on_axis)
    made = g.op("Where", flat, on_axis, g.op("Mul", half, g.number(2.0)))
    return g.op("Where", g.op("Or", g.op("IsNaN", a), g.op("IsNaN", b)), g.number(math.nan), made)


def _scaled(g: Graph, side: str, scale: str) -> str:
    infinite = g.op("Where", g.op("IsInf", side), g.op("Sign", side), g.number(0.0))
    return g.op("Where", g.op("IsInf", scale), infinite, g.op("Div", side, scale))


def _negative(g: Graph, side: str) -> str:
    """Also of a zero."""
    zero = g.number(0.0)
    return g.op("Or", g.op("Less", side, zero), g.op("Less", g.op("Reciprocal", side), zero))
