"""Ceilings of the CPU for `mixplan bench`, by the program that measures them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mixplan.runtime.cost import Limits, record_limits
from mixplan.runtime.errors import MixplanError
from mixplan.runtime.hardware import hardware
from mixplan.targets.cpu.ceilings import Ceilings, Probe, measure

__all__ = ["CpuMeter", "cpu_meter"]

_LEAST, _MOST = 1 << 20, 1 << 30
# The fingerprint is of the memory: of a smaller plan it would be that of a core's own cache.
_LEAST_FINGERPRINT = 64 << 20
_UNITS = {
    "portable": ("sse",),
    "x86-64-v3": ("sse", "avx2"),
    "x86-64-v4-vnni": ("sse", "avx2", "avx512", "vnni"),
    "x86-64-v4-bf16": ("sse", "avx2", "avx512", "vnni"),
}
"""Units that kernels of a level may use; those of other levels all there are."""
# A level without bf16 products computes them in fp32.
_WITHOUT_BF16 = ("portable", "x86-64-v3", "x86-64-v4-vnni")


def cpu_meter() -> tuple[CpuMeter | None, str]:
    """A meter, or None and why there is none."""
    try:
        return CpuMeter(), ""
    except MixplanError as error:
        return None, str(error)


class CpuMeter:
    """See Meter. Compiles its probes once, on first use; MixplanError where there is no compiler."""

    def __init__(self) -> None:
        Probe()

    def read_bandwidth(self, size: int, threads: int) -> dict[str, Any]:
        """See Meter.read_bandwidth."""
        size = min(max(size, _LEAST_FINGERPRINT), _MOST)
        found = measure(sizes=(size,), threads=(threads,), peaks=False, rounds=5)
        rate = found.bandwidth(size, threads) * 1e9
        return {"bytes_per_second": rate, "working_set": size, "by": "mixplan's own probe", "threads": threads}

    def limits(self, working_set: int, threads: int, level: str) -> tuple[Limits, Mapping[str, Any]]:
        """See Meter.limits."""
        largest = min(max(working_set, _LEAST), _MOST)
        sizes = [size for size in (1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28) if size < largest]
        found = measure(sizes=(*sizes, largest), threads=(threads,), rounds=5)
        peaks = {kind: _peak(found, kind, threads, level) * 1e9 for kind in ("int8", "bf16", "fp32")}
        if level in _WITHOUT_BF16 or not peaks["bf16"]:
            peaks["bf16"] = peaks["fp32"]
        rates = [(size, found.bandwidth(size, threads) * 1e9) for size in (*sizes, largest)]
        record = replace(hardware(), cores=threads, bandwidth=tuple(rates), peaks={**peaks, "f32": peaks["fp32"]})
        return record_limits(record), {"bandwidth": rates, "peaks": peaks, "threads": threads, "level": level}


def _peak(found: Ceilings, kind: str, threads: int, level: str) -> float:
    """The fastest unit that the level may use; 0.0 where it has none of that kind."""
    if level not in _UNITS:
        return found.peak(kind, threads)
    return max(found.peak(kind, threads, unit=unit) for unit in _UNITS[level])
