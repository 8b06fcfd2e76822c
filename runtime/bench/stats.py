"""Figures with their spread."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

__all__ = ["Better", "Figure", "blocked", "percentile", "repeated", "spread"]

Better = Literal["lower", "higher"]

# Blocks of consecutive values whose figures are compared to see how far a figure moves within one run.
_BLOCKS = 8
# Times the median distance from the median is the standard deviation, of normal values.
_MAD_TO_SIGMA = 1.4826


class Figure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One measured figure. `better` says which way is an improvement.

    spread: relative standard deviation (robust: from the median distance to the median) of the same figure over parts of the run, or over
    repetitions; None where there were too few. count: values that it was made of.
    """

    value: float
    unit: str
    better: Better
    spread: float | None = None
    count: int = 1


def percentile(values: Sequence[float], rank: float) -> float:
    """The value below which `rank` percent of `values` lie, interpolated between neighbours. `values` may not be empty."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * rank / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def spread(values: Sequence[float]) -> float | None:
    """Relative standard deviation, robust; None for fewer than 3 values, or a median of 0."""
    if len(values) < 3:
        return None
    middle = statistics.median(values)
    if middle == 0:
        return None
    return _MAD_TO_SIGMA * statistics.median(abs(value - middle) for value in values) / abs(middle)


def repeated(values: Sequence[float], unit: str, better: Better = "lower") -> Figure:
    """The median of a measurement that was made several times."""
    return Figure(statistics.median(values), unit, better, spread(values), len(values))


def blocked(values: Sequence[float], figure: Callable[[Sequence[float]], float], unit: str, better: Better = "lower") -> Figure:
    """`figure` over all values, and its spread over blocks of consecutive ones."""
    size = len(values) // _BLOCKS
    parts = [figure(values[size * k : size * (k + 1)]) for k in range(_BLOCKS)] if size >= 2 else []
    return Figure(figure(values), unit, better, spread(parts), len(values))
