"""The predicted budget for a promise, corrected by what the plans that were built turned out to be."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

__all__ = ["Budget", "Offset"]

_AIM = 0.98
"""The share of the limit that a correction aims at."""
_EDGE = 0.15


@dataclass
class Budget:
    """For one promise: what the solver may predict, so that what is measured keeps the limit.

    points: (predicted, measured) of the plans so far. The next budget assumes that measured is a power of predicted: from one plan it
    takes their ratio, from a plan that keeps the promise and one that does not it interpolates between the two, in logarithms.
    """

    limit: float
    start: float
    points: list[tuple[float, float]] = field(default_factory=list)

    def add(self, predicted: float, measured: float) -> None:
        """A plan was measured."""
        self.points.append((predicted, measured))

    @property
    def scale(self) -> float:
        """Measured over predicted, of the plan nearest to the limit; 1 before any."""
        usable = [(predicted, measured) for predicted, measured in self.points if predicted > 0 and measured > 0]
        if not usable:
            return 1.0
        predicted, measured = min(usable, key=lambda point: abs(math.log(point[1] / self.limit)))
        return measured / predicted

    def _power(self) -> float:
        """Of predicted, as the last two plans show it; 1 where they do not."""
        if len(self.points) < 2:
            return 1.0
        (p, m), (q, n) = self.points[-2:]
        if min(p, q, m, n) <= 0 or abs(math.log(p / q)) < 0.02:
            return 1.0
        return min(max(math.log(m / n) / math.log(p / q), 0.5), 2.0)

    def value(self) -> float:
        """What the solver may predict next."""
        if not self.points:
            return self.start
        predicted, measured = self.points[-1]
        guess = predicted * (self.limit * _AIM / measured) ** (1 / self._power()) if measured > 0 else predicted * 2
        kept = [p for p, m in self.points if m <= self.limit]
        missed = [p for p, m in self.points if m > self.limit]
        low, high = max(kept, default=0.0), min(missed, default=math.inf)
        if low >= high:
            # Not in order: prediction is only so good. Below all that was missed, in small steps.
            return min(guess, high * (1 - _EDGE / 3))
        if low <= 0:
            return min(guess, high * (1 - _EDGE / 3))
        if math.isinf(high):
            return max(guess, low * (1 + _EDGE / 3))
        below = next(m for p, m in self.points if p == low)
        above = next(m for p, m in self.points if p == high)
        ordered = 0 < below < above
        share = math.log(self.limit * _AIM / below) / math.log(above / below) if ordered else 0.5
        share = min(max(share, _EDGE), 1 - _EDGE)
        return float(low * (high / low) ** share)


@dataclass
class Offset:
    """As Budget, for what is predicted but for something that all plans share, such as the files beside the weights."""

    limit: float
    points: list[tuple[float, float]] = field(default_factory=list)

    def add(self, predicted: float, measured: float) -> None:
        """A plan was measured."""
        self.points.append((predicted, measured))

    @property
    def scale(self) -> float:
        """No correction by a factor."""
        return 1.0

    def value(self) -> float:
        """What the solver may predict next."""
        return self.limit - max((measured - predicted for predicted, measured in self.points), default=0.0)
