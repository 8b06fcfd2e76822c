"""The record of a device, and a sample of what changes."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field

__all__ = ["CacheLevel", "Hardware", "Sample"]


@dataclass(frozen=True)
class CacheLevel:
    """One cache as a core sees it: level 1..4, kind "data" or "unified", bytes, and how many of the machine's cores share it."""

    level: int
    kind: str
    size: int
    shared_by: int


@dataclass(frozen=True)
class Hardware:
    """A device. Sizes in bytes, rates in bytes/s and operations/s, clocks in Hz; None is not known, and an empty field nothing known.

    device: "cpu", "gpu:0", "npu:qnn". arch as in uname, or sm_90. flags: what its instructions include. cores: cores or streaming
    multiprocessors that this process may use (affinity and cgroup quota counted in), of machine_cores. clock: the highest. memory, and the
    part of it that this process may use: a cgroup's limit, or what the driver keeps for itself, taken off. link: what the connection to the
    host carries one way, as its standard says. memory_rate: bytes/s that a GPU's memory carries by its
    clock and width. measured_at, bandwidth, peaks: of the last run of the ceilings program on this machine, by
    all cores together: (working set, bytes/s) pairs by size, and multiply-adds, two operations each, by dtype.
    """

    device: str
    model: str | None = None
    arch: str | None = None
    flags: tuple[str, ...] = ()
    cores: int | None = None
    machine_cores: int | None = None
    clock: float | None = None
    caches: tuple[CacheLevel, ...] = ()
    memory: int | None = None
    memory_limit: int | None = None
    link: float | None = None
    memory_rate: float | None = None
    measured_at: str | None = None
    bandwidth: tuple[tuple[int, float], ...] | None = None
    peaks: dict[str, float] | None = field(default=None, hash=False)

    def read_rate(self, size: float) -> float | None:
        """Bytes/s of reading a working set of `size` bytes: between the measured sizes linear in log(size), beyond them the nearest one."""
        curve = self.bandwidth
        if not curve:
            return None
        if size <= curve[0][0]:
            return curve[0][1]
        for (low, slow), (high, fast) in itertools.pairwise(curve):
            if size <= high:
                return slow + (math.log(size) - math.log(low)) / (math.log(high) - math.log(low)) * (fast - slow)
        return curve[-1][1]


@dataclass(frozen=True)
class Sample:
    """A device at one moment. free: bytes that can still be had, reservations and limits taken off. Celsius, watts, Hz. None: not told."""

    free: int | None = None
    temperature: float | None = None
    power: float | None = None
    clock: float | None = None
