"""Attention head by head: how far Q, K, V, their products and the softmax's input reach."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

__all__ = ["HeadRanges", "Ranges"]

# Elements of a block of scores that is looked at together.
_BLOCK = 1 << 22


@dataclass(frozen=True)
class Ranges:
    """Least, largest and mean square of each head, f64 [H]."""

    low: Tensor
    high: Tensor
    squares: Tensor
    count: int

    @classmethod
    def of(cls, x: Tensor) -> Ranges:
        """Of x [T, H, D]."""
        wide = x.float()
        return cls(wide.amin((0, 2)).double(), wide.amax((0, 2)).double(), wide.square().sum((0, 2)).double(), int(x.shape[0] * x.shape[2]))

    def merge(self, other: Ranges) -> Ranges:
        """Of both parts together."""
        return Ranges(
            torch.minimum(self.low, other.low), torch.maximum(self.high, other.high), self.squares + other.squares, self.count + other.count
        )

    @property
    def absmax(self) -> Tensor:
        """Largest magnitude of each head."""
        return torch.maximum(-self.low, self.high)

    @property
    def rms(self) -> Tensor:
        """Root mean square of each head."""
        return (self.squares / max(self.count, 1)).sqrt()


@dataclass(frozen=True)
class HeadRanges:
    """One attention layer. Scores are q . k of the pairs that attend; the softmax input is what its exponential gets: scaled, capped, with
    slopes. span: the largest difference in one row of it; mean_span: the mean over rows; all f64 [Hq].
    """

    q: Ranges
    k: Ranges
    v: Ranges
    score_low: Tensor
    score_high: Tensor
    input_low: Tensor
    input_high: Tensor
    span: Tensor
    span_sum: Tensor
    rows: int

    @classmethod
    def of(
        cls,
        lengths: Sequence[int],
        q: Tensor,
        k: Tensor,
        v: Tensor,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
        slopes: Tensor | None = None,
        mask: str = "causal",
    ) -> HeadRanges:
        """Of token-major q [T, Hq, Dk], k [T, Hkv, Dk], v [T, Hkv, Dv] that hold windows of the given lengths, one after the other."""
        heads = q.shape[1]
        most = torch.full((heads,), torch.inf, dtype=torch.float64)
        none = torch.zeros_like(most)
        found = cls(Ranges.of(q), Ranges.of(k), Ranges.of(v), most, -most, most, -most, none, none, 0)
        keys = k.float().repeat_interleave(heads // k.shape[1], 1)
        start = 0
        for length in lengths:
            queries = q[start : start + length].float().transpose(0, 1)
            others = keys[start : start + length].permute(1, 2, 0)
            for first, rows in _blocks(length, heads):
                scores = torch.matmul(queries[:, first : first + rows], others)
                found = found._with(scores, first, scale, window, softcap, slopes, mask)
            start += length
        return found

    def _with(self, scores: Tensor, first: int, scale: float, window: int, softcap: float, slopes: Tensor | None, mask: str) -> HeadRanges:
        """With a block of scores [H, rows, L] whose first query is at position `first`."""
        query = torch.arange(first, first + scores.shape[1])[:, None]
        key = torch.arange(scores.shape[2])[None, :]
        keep = key <= query
        if mask == "chunked":
            keep &= key // window == query // window
        elif window:
            keep &= key > query - window
        low, high = _row_ends(scores, keep)
        if slopes is None and scale > 0:
            # What is done to scores keeps their order.
            least, most = (_cooked(ends, scale, softcap) for ends in (low, high))
        else:
            inputs = _cooked(scores, scale, softcap)
            if slopes is not None:
                inputs = inputs + slopes.float().reshape(-1, 1, 1) * (key - query)
            least, most = _row_ends(inputs, keep)
        span = most - least
        return replace(
            self,
            score_low=torch.minimum(self.score_low, low.amin(1)),
            score_high=torch.maximum(self.score_high, high.amax(1)),
            input_low=torch.minimum(self.input_low, least.amin(1)),
            input_high=torch.maximum(self.input_high, most.amax(1)),
            span=torch.maximum(self.span, span.amax(1)),
            span_sum=self.span_sum + span.sum(1),
            rows=self.rows + scores.shape[1],
        )

    def merge(self, other: HeadRanges) -> HeadRanges:
        """Of both parts together."""
        return HeadRanges(
            self.q.merge(other.q),
            self.k.merge(other.k),
            self.v.merge(other.v),
            torch.minimum(self.score_low, other.score_low),
            torch.maximum(self.score_high, other.score_high),
            torch.minimum(self.input_low, other.input_low),
            torch.maximum(self.input_high, other.input_high),
            torch.maximum(self.span, other.span),
            self.span_sum + other.span_sum,
            self.rows + other.rows,
        )

    @property
    def mean_span(self) -> Tensor:
        """Mean over rows of the difference between a row's largest and least softmax input."""
        return self.span_sum / max(self.rows, 1)


def _blocks(length: int, heads: int) -> Iterator[tuple[int, int]]:
    rows = max(_BLOCK // (length * heads), 1)
    for first in range(0, length, rows):
        yield first, min(rows, length - first)


def _cooked(scores: Tensor, scale: float, softcap: float) -> Tensor:
    inputs = scores * scale
    return torch.tanh(inputs / softcap) * softcap if softcap else inputs


def _row_ends(values: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """Least and largest of each row's kept values, f64 [H, rows]."""
    low = values.masked_fill(~keep, torch.inf).amin(-1)
    high = values.masked_fill(~keep, -torch.inf).amax(-1)
    return low.double(), high.double()
