"""Places of the step's values in the arena: two buffers share memory where no launch needs both."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass

__all__ = ["ALIGNMENT", "Buffer", "place"]

ALIGNMENT = 256
"""Bytes; kernels are built for pointers aligned to 16, and memory is read in pieces of up to 128."""


@dataclass(eq=False)
class Buffer:
    """Memory for one value at the largest step. first, last: the launches that touch it; `last` may grow."""

    nbytes: int
    first: int
    last: int
    offset: int = -1


def _rounded(nbytes: int) -> int:
    return max(-(-nbytes // ALIGNMENT), 1) * ALIGNMENT


def place(buffers: list[Buffer]) -> int:
    """Set every buffer's offset, each in the smallest gap that holds it when it is first needed; gives the size of the arena in bytes."""
    live: list[tuple[int, int, int]] = []  # (offset, end, last)
    size = 0
    for buffer in sorted(buffers, key=lambda b: (b.first, -b.nbytes)):
        live = sorted(entry for entry in live if entry[2] >= buffer.first)
        need, best, end = _rounded(buffer.nbytes), (1 << 62, -1), 0
        for offset, stop, _ in live:
            if offset - end >= need:
                best = min(best, (offset - end, end))
            end = max(end, stop)
        buffer.offset = best[1] if best[1] >= 0 else end
        insort(live, (buffer.offset, buffer.offset + need, buffer.last))
        size = max(size, buffer.offset + need)
    return size
