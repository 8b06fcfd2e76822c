"""Polynomials in T (tokens of the step) and R (rows of logits) with integer coefficients: every size, stride and offset is one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mixplan.runtime.plan import Dim

__all__ = ["ONE", "ZERO", "Poly", "product"]


@dataclass(frozen=True)
class Poly:
    """Sum of coef * T^i * R^j, as sorted ((i, j), coef) without zero coefficients, so that equal polynomials are equal objects."""

    terms: tuple[tuple[tuple[int, int], int], ...] = ()

    @staticmethod
    def of(value: int | Dim | Poly) -> Poly:
        """The polynomial of an integer or of a plan dimension."""
        if isinstance(value, Poly):
            return value
        if isinstance(value, int):
            return Poly((((0, 0), value),)) if value else ZERO
        power = (1, 0) if value.sym == "T" else (0, 1)
        return Poly(((power, value.mul),)) + Poly.of(value.add)

    def __add__(self, other: Poly | int) -> Poly:
        total = dict(self.terms)
        for power, coef in Poly.of(other).terms:
            total[power] = total.get(power, 0) + coef
        return Poly(tuple(sorted((p, c) for p, c in total.items() if c)))

    def __mul__(self, other: Poly | int) -> Poly:
        total: dict[tuple[int, int], int] = {}
        for (i, j), a in self.terms:
            for (k, m), b in Poly.of(other).terms:
                total[i + k, j + m] = total.get((i + k, j + m), 0) + a * b
        return Poly(tuple(sorted((p, c) for p, c in total.items() if c)))

    @property
    def constant(self) -> int | None:
        """Its value where it depends on neither T nor R."""
        if not self.terms:
            return 0
        return self.terms[0][1] if len(self.terms) == 1 and self.terms[0][0] == (0, 0) else None

    def at(self, tokens: int, rows: int) -> int:
        """Its value for `tokens` and `rows`."""
        return sum(c * tokens**i * rows**j for (i, j), c in self.terms)

    def split(self) -> tuple[int, Poly]:
        """The constant part and the rest."""
        rest = tuple((p, c) for p, c in self.terms if p != (0, 0))
        return sum(c for p, c in self.terms if p == (0, 0)), Poly(rest)

    def __str__(self) -> str:
        """As a C++ expression over the int64_t variables T and R, in parentheses where it is a sum."""
        parts = []
        for (i, j), coef in self.terms:
            factors = ["T"] * i + ["R"] * j
            if coef != 1 or not factors:
                factors.insert(0, str(coef))
            parts.append("*".join(factors))
        return parts[0] if len(parts) == 1 else f"({' + '.join(parts)})" if parts else "0"


ZERO = Poly()
ONE = Poly((((0, 0), 1),))


def product(values: Iterable[Poly]) -> Poly:
    """The product of all, 1 for none."""
    out = ONE
    for value in values:
        out = out * value
    return out
