"""Channels (the last axis): how large each gets, and which get far larger than the rest."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["OUTLIER_RATIO", "Channels"]

OUTLIER_RATIO = 6.0
"""A channel is an outlier where its largest magnitude is more than this many times the median channel's."""


@dataclass(frozen=True)
class Channels:
    """Of n rows: each channel's largest magnitude and sum of squares, f32 [K] and f64 [K]."""

    rows: int
    absmax: Tensor
    squares: Tensor

    @classmethod
    def of(cls, x: Tensor) -> Channels:
        """Of a tensor f32 [n, K], which is finite."""
        if x.shape[0] == 0:
            return cls(0, x.new_zeros(x.shape[1]), x.new_zeros(x.shape[1], dtype=torch.float64))
        absmax = torch.maximum(x.amax(0), -x.amin(0))
        return cls(x.shape[0], absmax, (x * x).sum(0).double())

    def merge(self, other: Channels) -> Channels:
        """Of both parts together; they have the same channels."""
        return Channels(self.rows + other.rows, torch.maximum(self.absmax, other.absmax), self.squares + other.squares)

    @property
    def mean_squares(self) -> Tensor:
        """Second moments about 0, f32 [K]: the diagonal of a layer's Hessian, up to a factor."""
        return (self.squares / max(self.rows, 1)).float()

    @property
    def median(self) -> float:
        """The median channel's largest magnitude."""
        return float(self.absmax.median()) if self.absmax.numel() else 0.0

    @property
    def ratio(self) -> float:
        """The largest channel's magnitude over the median channel's; 0 where that is 0."""
        median = self.median
        return float(self.absmax.max()) / median if median > 0 else 0.0

    def outliers(self) -> list[int]:
        """Outlier channels, largest first."""
        median = self.median
        if median <= 0:
            return []
        order = torch.argsort(self.absmax, descending=True, stable=True)
        count = int((self.absmax > OUTLIER_RATIO * median).sum())
        return [int(channel) for channel in order[:count].tolist()]

    @property
    def dead(self) -> int:
        """Channels that are 0 in every row."""
        return int((self.absmax == 0).sum())
