"""The ceilings that modelled times are held against: this machine's, where they can be measured."""

from __future__ import annotations

from mixplan.runtime.cost import Limits
from mixplan.runtime.cost.machine import record_limits
from mixplan.runtime.errors import MixplanError
from mixplan.runtime.hardware import NOMINAL, Hardware, hardware

__all__ = ["machine_limits"]


def machine_limits(working_set: int) -> tuple[Limits, str]:
    """Ceilings of all cores for a step that reads `working_set` bytes, and what they are, in words. Measured once for each machine."""
    try:
        record = _measured()
    except (MixplanError, OSError, ImportError) as error:
        reason = str(error).splitlines()[0]
        # Only their ratio matters to shares, and a decode step is bound by bytes on any machine.
        limits = record_limits(NOMINAL)
        rate = limits.bandwidth(working_set)
        words = f"roofline of a nominal machine ({rate / 1e9:.0f} GB/s, {limits.f32 / 1e9:.0f} GFLOP/s f32): {reason}"
        return Limits(lambda _: rate, f32=limits.f32), words
    limits = record_limits(record)
    rate, peak = limits.bandwidth(working_set), limits.f32
    words = f"roofline of this machine: {rate / 1e9:.0f} GB/s at this model's size, {peak / 1e9:.0f} GFLOP/s f32, {record.cores} threads"
    return Limits(lambda _: rate, f32=peak), words


def _measured() -> Hardware:
    record = hardware()
    if record.bandwidth is not None:
        return record
    from mixplan.targets.cpu.ceilings.machine import measure_machine

    return measure_machine(rounds=3)
