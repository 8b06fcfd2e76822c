"""What handing a value from one unit of this machine to another takes: a copy in memory."""

from __future__ import annotations

from time import perf_counter

import numpy as np
from numpy.typing import NDArray

__all__ = ["measure_transfer"]

_BYTES = 1 << 22
_ROUNDS = 7


def measure_transfer() -> tuple[float, float]:
    """(bytes a second, seconds that a transfer takes besides): the best of some copies of 4 MiB, and of one of nothing much."""
    source, target = np.ones(_BYTES, np.uint8), np.empty(_BYTES, np.uint8)
    few = slice(0, 64)
    large = min(_seconds(source, target, slice(None)) for _ in range(_ROUNDS))
    small = min(_seconds(source, target, few) for _ in range(_ROUNDS))
    return _BYTES / large, small


def _seconds(source: NDArray[np.uint8], target: NDArray[np.uint8], part: slice) -> float:
    started = perf_counter()
    target[part] = source[part]
    return perf_counter() - started
