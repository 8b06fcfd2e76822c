"""The ceilings that modelled times are held against: this machine's, where they can be measured."""

from __future__ import annotations

from mixplan.runtime.cost import Limits
from mixplan.runtime.cost.machine import record_limits
from mixplan.runtime.errors import MixplanError
from mixplan.runtime.hardware import Hardware, hardware

__all__ = ["machine_limits"]

# Where nothing can be measured: only their ratio matters to shares, and a decode step is bound by bytes on either side of it.
_NOMINAL = (20e9, 100e9)


def machine_limits(working_set: int) -> tuple[Limits, str]:
    """Ceilings of all cores for a step that reads `working_set` bytes, and what they are, in words. Measured once for each machine."""
    try:
        record = _measured()
    except (MixplanError, OSError, ImportError) as error:
        reason = str(error).splitlines()[0]
        bandwidth, peak = _NOMINAL
        return Limits(lambda _: bandwidth, f32=peak), f"roofline of a nominal machine (20 GB/s, 100 GFLOP/s f32): {reason}"
    limits = record_limits(record)
    assert limits is not None
    rate, peak = limits.bandwidth(working_set), limits.f32
    words = f"roofline of this machine: {rate / 1e9:.0f} GB/s at this model's size, {peak / 1e9:.0f} GFLOP/s f32, {record.cores} threads"
    return Limits(lambda _: rate, f32=peak), words


def _measured() -> Hardware:
    record = hardware()
    if record.bandwidth is not None:
        return record
    from mixplan.targets.cpu.ceilings.machine import measure_machine

    return measure_machine(rounds=3)
