"""From torch's symbolic sizes to the plan's dimensions.

A captured graph knows two unknown sizes: T, the number of tokens of the step, and R, the number of wanted logit rows. Everything else is a
number, or `mul * T + add`; other expressions (a product of two unknowns, a floor division that does not cancel) have no place in a plan.
"""

from __future__ import annotations

from typing import Any

import sympy
import torch

from mixplan.runtime.plan import Dim, Shape, Sym

__all__ = ["Symbols", "add_dims", "mul_dims", "product", "same_shape"]


class Symbols:
    """Knows which sympy symbols of one capture stand for T and for R."""

    def __init__(self) -> None:
        self._names: dict[Any, str] = {}

    def learn(self, placeholder: str, val: torch.Tensor) -> None:
        """Read the symbols off an input: R from `logit_rows`, T from any other."""
        for size in val.shape:
            if isinstance(size, torch.SymInt) and isinstance(size.node.expr, sympy.Symbol):
                self._names.setdefault(size.node.expr, "R" if placeholder == "logit_rows" else "T")

    def dim(self, size: Any) -> Dim:
        """The dimension that a size (int or SymInt) stands for; ValueError where a plan cannot hold it."""
        if isinstance(size, int):
            return size
        expr = sympy.expand(size.node.expr)
        if expr.is_Integer:
            return int(expr)
        free = sorted(expr.free_symbols, key=str)
        if len(free) == 1 and free[0] in self._names:
            poly = expr.as_poly(free[0])
            if poly is not None and poly.degree() == 1 and poly.free_symbols == {free[0]}:
                mul, add = poly.all_coeffs()
                if mul.is_Integer and add.is_Integer:
                    return Sym(sym=self._names[free[0]], mul=int(mul), add=int(add))  # type: ignore[arg-type]
        known = ", ".join(f"{s} is {n}" for s, n in self._names.items())
        raise ValueError(f"size {size} is not a number nor mul * T + add nor mul * R + add ({known})")

    def shape(self, sizes: Any) -> Shape:
        """The plan shape of a torch size."""
        return tuple(self.dim(s) for s in sizes)


def add_dims(a: Dim, b: Dim) -> Dim:
    """a + b; ValueError for T + R."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    if isinstance(a, int):
        a, b = b, a
    assert isinstance(a, Sym)
    if isinstance(b, int):
        return Sym(sym=a.sym, mul=a.mul, add=a.add + b)
    if a.sym != b.sym:
        raise ValueError("a size that depends on both T and R")
    mul = a.mul + b.mul
    return Sym(sym=a.sym, mul=mul, add=a.add + b.add) if mul else a.add + b.add


def mul_dims(a: Dim, b: Dim) -> Dim:
    """a * b; ValueError where both are unknown."""
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    if isinstance(a, int):
        a, b = b, a
    assert isinstance(a, Sym)
    if not isinstance(b, int):
        raise ValueError("a size that is a product of two unknown sizes")
    return Sym(sym=a.sym, mul=a.mul * b, add=a.add * b) if b else 0


def product(shape: Shape) -> Dim:
    """The number of elements."""
    total: Dim = 1
    for dim in shape:
        total = mul_dims(total, dim)
    return total


def same_shape(a: Shape, b: Shape) -> bool:
    """Equal in every step, whatever T and R are."""
    return tuple(a) == tuple(b)
