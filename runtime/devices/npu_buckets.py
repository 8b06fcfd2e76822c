"""Static shapes: an NPU compiles a model for fixed sizes, so a step is padded to the next of a few."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PAST", "TOKENS", "Bucket", "bucket_of"]

TOKENS = (1, 16, 64, 256)
"""Tokens (and rows of logits) of a step; beyond, each four times the last."""

PAST = (128, 512)
"""Tokens that are in the KV cache before the step, of all its sequences; beyond, each four times the last."""

_GROWTH = 4


@dataclass(frozen=True)
class Bucket:
    """The sizes of one compiled model: tokens T, rows R, past L."""

    tokens: int
    rows: int
    past: int

    @property
    def dims(self) -> dict[str, int]:
        """Sizes by the names of the model's dims."""
        return {"T": self.tokens, "R": self.rows, "L": self.past, "S": self.past + self.tokens}


def _next(sizes: tuple[int, ...], wanted: int) -> int:
    for size in sizes:
        if wanted <= size:
            return size
    size = sizes[-1]
    while size < wanted:
        size *= _GROWTH
    return size


def bucket_of(tokens: int, rows: int, past: int, *, has_rows: bool, has_past: bool) -> Bucket:
    """The smallest bucket that holds a step. What a region does not have is of one size throughout."""
    padded = _next(TOKENS, tokens)
    return Bucket(padded, _next(TOKENS, rows) if has_rows else 1, _next(PAST, past) if has_past else PAST[0])
