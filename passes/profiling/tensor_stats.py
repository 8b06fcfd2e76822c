"""All figures of one tensor, gathered part by part."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mixplan.passes.profiling.channels import Channels
from mixplan.passes.profiling.histogram import LogHistogram
from mixplan.passes.profiling.moments import OFF_CENTRE, SIZES, Moments
from mixplan.passes.profiling.runs import ZeroRuns

__all__ = ["TensorStats"]

# Elements that are looked at together, which bounds the copies that are made of them.
_BLOCK = 1 << 20


@dataclass(frozen=True)
class TensorStats:
    """Mergeable: `of(a).merge(of(b))` is, but for rounding, `of` both rows together. Some 10 to 130 kB
    and 12 bytes a channel, however many rows.

    row_sizes: histogram of the rows' largest magnitudes (a row is a token's vector, or a weight's output). nonfinite: NaN and infinities,
    which count in nothing else.
    """

    moments: Moments = field(default_factory=Moments)
    histogram: LogHistogram = field(default_factory=LogHistogram)
    runs: ZeroRuns = field(default_factory=ZeroRuns)
    channels: Channels | None = None
    row_sizes: LogHistogram = field(default_factory=LogHistogram)
    nonfinite: int = 0

    @classmethod
    def of(cls, x: Tensor) -> TensorStats:
        """Of a floating-point tensor [..., K]."""
        rows = x.detach().float().reshape(-1, x.shape[-1] if x.dim() else 1).contiguous()
        if rows.numel() == 0:
            return cls()
        step = max(_BLOCK // rows.shape[1], 1)
        found = cls._of_block(rows[:step])
        for start in range(step, rows.shape[0], step):
            found = found.merge(cls._of_block(rows[start : start + step]))
        return found

    @classmethod
    def _of_block(cls, rows: Tensor) -> TensorStats:
        most, least = rows.amax(0), rows.amin(0)
        low, high = float(least.min()), float(most.max())
        if not math.isfinite(low + high):
            good = torch.isfinite(rows)
            bad = int((~good).sum())
            if bad:
                kept = cls._of_block(torch.where(good, rows, torch.zeros_like(rows)))
                values = rows[good]
                return cls(Moments.of(values), LogHistogram.of(values), ZeroRuns.of(rows), kept.channels, kept.row_sizes, bad)
        square = rows * rows
        columns = square.sum(0).double()
        histogram = LogHistogram.of(rows)
        sizes = LogHistogram.of(torch.maximum(rows.amax(1), -rows.amin(1)))
        return cls(
            _moments(rows, square, float(columns.sum()), low, high),
            histogram,
            # Zeros are among the values that are too small for a bucket: mostly there are none.
            ZeroRuns.of(rows) if histogram.tiny else ZeroRuns(rows.numel()),
            Channels(rows.shape[0], torch.maximum(most, -least), columns),
            sizes,
        )

    def merge(self, other: TensorStats) -> TensorStats:
        """Of both parts together."""
        if other.channels is None or self.channels is None:
            channels = self.channels if other.channels is None else other.channels
        else:
            channels = self.channels.merge(other.channels)
        return TensorStats(
            self.moments.merge(other.moments),
            self.histogram.merge(other.histogram),
            self.runs.merge(other.runs),
            channels,
            self.row_sizes.merge(other.row_sizes),
            self.nonfinite + other.nonfinite,
        )


def _moments(rows: Tensor, square: Tensor, squares: float, low: float, high: float) -> Moments:
    """As `Moments.of`, from sums that are there already where these are exact enough."""
    n = rows.numel()
    total = float(rows.sum())
    centred = total * total <= OFF_CENTRE * OFF_CENTRE * squares * n
    if not (centred and SIZES[0] <= max(-low, high) <= SIZES[1]):
        return Moments.of(rows)
    flat, powers = rows.reshape(-1), square.reshape(-1)
    return Moments.from_sums(n, (total, squares, float(torch.dot(powers, flat)), float(torch.dot(powers, powers))), low, high)
