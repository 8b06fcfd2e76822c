"""What a benchmark asks of a program that measures the machine's ceilings. The runtime has none: it takes a compiler to make one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from mixplan.runtime.cost import Limits

__all__ = ["Meter"]


class Meter(Protocol):
    """Measures in this process, at the time of the call. All of it raises UnsupportedError where it cannot."""

    def read_bandwidth(self, size: int, threads: int) -> Mapping[str, Any]:
        """bytes_per_second, working_set, threads and `by`, of `threads` threads that read `size` bytes again and again."""

    def limits(self, working_set: int, threads: int, level: str) -> tuple[Limits, Mapping[str, Any]]:
        """Ceilings for plans that run on an ISA level, for working sets up to `working_set` bytes; and the same as plain data."""
