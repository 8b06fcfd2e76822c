"""Count, mean, central moments up to the fourth, least and largest: of a part of a tensor's values, and joined from parts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["OFF_CENTRE", "SIZES", "Moments"]

# Values are brought near 1 before they are raised to the fourth power, where they are outside of this.
SIZES = (1e-4, 1e4)
# A mean of more than this part of the root mean square is taken off before powers are summed.
OFF_CENTRE = 0.1


@dataclass(frozen=True)
class Moments:
    """`m2`, `m3`, `m4` are sums of powers of the distance from the mean, in float64. Without values: count 0, low inf, high -inf.

    Joining is that of Pébay, Formulas for robust, one-pass parallel computation of covariances and arbitrary-order statistical moments
    (Sandia report SAND2008-6212, 2008).
    """

    count: int = 0
    mean: float = 0.0
    m2: float = 0.0
    m3: float = 0.0
    m4: float = 0.0
    low: float = math.inf
    high: float = -math.inf

    @classmethod
    def of(cls, x: Tensor) -> Moments:
        """Of all elements of a tensor f32 of any shape, which are finite."""
        n = x.numel()
        if n == 0:
            return cls()
        x = x.reshape(-1)
        low, high = (float(value) for value in torch.aminmax(x))
        size = max(-low, high)
        if size == 0.0:
            return cls(count=n, low=0.0, high=0.0)
        unit = 1.0 if SIZES[0] <= size <= SIZES[1] else size
        if unit != 1.0:
            x = x / unit
        square = x * x
        centre = float(x.mean())
        if centre * centre > OFF_CENTRE * OFF_CENTRE * float(square.mean()):
            x = x - centre
            square = x * x
        else:
            centre = 0.0
        if low == high:
            return cls(n, low, 0.0, 0.0, 0.0, low, high)
        sums = (float(x.sum()), float(square.sum()), float(torch.dot(square, x)), float(torch.dot(square, square)))
        return cls.from_sums(n, sums, low, high, centre, unit)

    @classmethod
    def from_sums(
        cls, n: int, sums: tuple[float, float, float, float], low: float, high: float, centre: float = 0.0, unit: float = 1.0
    ) -> Moments:
        """From the sums of y, y^2, y^3 and y^4 of n values x, where y = x / unit - centre."""
        s1, s2, s3, s4 = sums
        off = s1 / n
        m2 = s2 - n * off * off
        m3 = s3 - 3 * off * s2 + 2 * n * off**3
        m4 = s4 - 4 * off * s3 + 6 * off * off * s2 - 3 * n * off**4
        return cls(n, (centre + off) * unit, max(m2, 0.0) * unit**2, m3 * unit**3, max(m4, 0.0) * unit**4, low, high)

    def merge(self, other: Moments) -> Moments:
        """Of both parts together."""
        if not self.count or not other.count:
            return self if self.count else other
        na, nb = self.count, other.count
        n = na + nb
        delta = other.mean - self.mean
        step = delta / n
        m2 = self.m2 + other.m2 + delta * step * na * nb
        m3 = self.m3 + other.m3 + delta * step * step * na * nb * (na - nb) + 3 * step * (na * other.m2 - nb * self.m2)
        m4 = (
            self.m4
            + other.m4
            + delta * step**3 * na * nb * (na * na - na * nb + nb * nb)
            + 6 * step * step * (na * na * other.m2 + nb * nb * self.m2)
            + 4 * step * (na * other.m3 - nb * self.m3)
        )
        return Moments(n, self.mean + step * nb, m2, m3, m4, min(self.low, other.low), max(self.high, other.high))

    @property
    def variance(self) -> float:
        """Mean squared distance from the mean."""
        return self.m2 / self.count if self.count else 0.0

    @property
    def std(self) -> float:
        """Root of the variance."""
        return math.sqrt(self.variance)

    @property
    def rms(self) -> float:
        """Root of the mean square."""
        return math.sqrt(self.variance + self.mean * self.mean)

    @property
    def absmax(self) -> float:
        """Largest magnitude."""
        return max(-self.low, self.high) if self.count else 0.0

    @property
    def skew(self) -> float:
        """Third standardized moment: 0 where values are symmetric, 0 by definition where they are all the same."""
        return (self.m3 / self.count) / self.variance**1.5 if self.variance > 0 else 0.0

    @property
    def kurtosis(self) -> float:
        """Fourth standardized moment less 3: 0 for a normal distribution, larger for heavy tails."""
        return (self.m4 / self.count) / self.variance**2 - 3.0 if self.variance > 0 else 0.0
