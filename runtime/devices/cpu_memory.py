"""Memory that the CPU device hands to the kernels."""

from __future__ import annotations

import contextlib
import mmap

import numpy as np

from mixplan.runtime.errors import CapacityError

__all__ = ["address", "reserve"]

_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
# From this size on memory lies in huge pages.
_HUGE = 4 << 20


def reserve(size: int, what: str) -> mmap.mmap:
    """Zeroed memory, page-aligned, that takes room only where it is touched."""
    try:
        memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)
    except (OSError, OverflowError, ValueError) as error:
        raise CapacityError(f"{size} bytes for {what} cannot be had: {error}.") from error
    if size >= _HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
        # Only a matter of speed.
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def address(memory: mmap.mmap) -> int:
    """Where it begins."""
    return np.frombuffer(memory, np.uint8).ctypes.data
