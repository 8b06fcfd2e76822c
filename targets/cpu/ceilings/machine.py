"""The ceilings of this machine, measured once and kept for its hardware record."""

from __future__ import annotations

from mixplan.runtime.devices.cpu_info import allowed_cores
from mixplan.runtime.hardware import Hardware, hardware
from mixplan.runtime.hardware.measured import write_measured
from mixplan.targets.cpu.ceilings.measure import measure
from mixplan.targets.cpu.ceilings.record import Ceilings

__all__ = ["KEPT_SIZES", "keep", "measure_machine"]

KEPT_SIZES = tuple(1 << power for power in (20, 22, 24, 26, 28))
"""Working sets from a core's own cache to the memory: 1 MiB to 256 MiB."""

# The record speaks of dtypes as plans do.
_DTYPES = {"int8": "int8", "bf16": "bf16", "fp32": "f32"}


def measure_machine(rounds: int = 5) -> Hardware:
    """Measure all cores together, which takes some seconds and 256 MiB, and keep the figures; gives the record with them.

    MissingExtraError or UnsupportedError where there is no compiler, OutputError where the cache cannot be written.
    """
    return keep(measure(sizes=KEPT_SIZES, threads=(allowed_cores(),), rounds=rounds))


def keep(found: Ceilings) -> Hardware:
    """Keep figures that were measured with all cores."""
    sizes = sorted({rate.bytes for rate in found.reads})
    bandwidth = [(size, found.bandwidth(size) * 1e9) for size in sizes]
    record = write_measured(hardware(), bandwidth, {_DTYPES[kind]: found.peak(kind) * 1e9 for kind in _DTYPES})
    hardware.cache_clear()
    return record
