"""What work on a CPU costs, by its hardware record: as measured on this machine, or estimated from its vector units."""

from __future__ import annotations

from mixplan.runtime.hardware import Hardware
from mixplan.targets.base import CostModel

__all__ = ["cpu_costs"]

_CLOCK, _BANDWIDTH = 2.5e9, 10e9  # Hz where the record has none, and bytes/s of one core
_MOST_READERS = 8  # cores that saturate a usual memory
_WEIGHTS = 1 << 30  # a working set that no cache holds


def cpu_costs(record: Hardware) -> CostModel:
    """Measured figures (`mixplan targets --measure`) where the record has them. An estimate takes two multiply-adds a cycle and core on
    registers as wide as the flags say, and four times that for int8 with dot products."""
    cores, clock = record.cores or 1, record.clock or _CLOCK
    lanes = 16 if "avx512f" in record.flags else 8 if "avx2" in record.flags else 4
    f32 = cores * 4 * lanes * clock
    dots = any("vnni" in flag or flag in ("i8mm", "asimddp") for flag in record.flags)
    estimated = {"f32": f32, "int8": 4 * f32 if dots else f32, "bf16": 2 * f32 if any("bf16" in flag for flag in record.flags) else f32}
    peaks = {**estimated, **(record.peaks or {})}
    bandwidth = record.read_rate(_WEIGHTS)
    source = f"measured at {record.measured_at}" if record.peaks and bandwidth else f"estimated: {cores} cores at {clock / 1e9:g} GHz"
    return CostModel(bandwidth or min(cores, _MOST_READERS) * _BANDWIDTH, peaks["int8"], peaks["bf16"], peaks["f32"], source=source)
