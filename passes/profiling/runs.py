"""Zeros, and whether they lie together: a run is consecutive zeros along the last axis, and ends with the row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["LONG_RUN", "ZeroRuns"]

LONG_RUN = 32
"""Runs longer than this could be skipped by a kernel that works on vectors or groups."""


@dataclass(frozen=True)
class ZeroRuns:
    """`zeros` of `count` values are exactly 0, `in_long_runs` of them in runs longer than LONG_RUN; `longest` is the longest run."""

    count: int = 0
    zeros: int = 0
    in_long_runs: int = 0
    longest: int = 0

    @classmethod
    def of(cls, x: Tensor) -> ZeroRuns:
        """Of the rows of a tensor [..., K]."""
        count = x.numel()
        zeros = count - int(torch.count_nonzero(x))
        if not zeros:
            return cls(count)
        rows = x.reshape(-1, x.shape[-1] if x.dim() else 1)
        # A zero's flag against its left neighbour's: +1 where a run starts, -1 behind its end.
        flags = torch.nn.functional.pad((rows == 0).to(torch.int8), (1, 1))
        change = flags[:, 1:] - flags[:, :-1]
        starts, ends = (torch.nonzero(change == sign, as_tuple=True)[1] for sign in (1, -1))
        lengths = ends - starts
        return cls(count, zeros, int(lengths[lengths > LONG_RUN].sum()), int(lengths.max()))

    def merge(self, other: ZeroRuns) -> ZeroRuns:
        """Of both parts together: no run goes on from one row to the next."""
        return ZeroRuns(
            self.count + other.count,
            self.zeros + other.zeros,
            self.in_long_runs + other.in_long_runs,
            max(self.longest, other.longest),
        )

    @property
    def zero_fraction(self) -> float:
        """Zeros among all values."""
        return self.zeros / self.count if self.count else 0.0

    @property
    def long_run_fraction(self) -> float:
        """Zeros in long runs among all values."""
        return self.in_long_runs / self.count if self.count else 0.0
