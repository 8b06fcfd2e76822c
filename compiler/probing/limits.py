"""The ceilings that modelled times are held against: this machine's, where they can be measured."""

from __future__ import annotations

from mixplan.runtime.cost import Limits
from mixplan.runtime.devices.cpu_info import allowed_cores
from mixplan.runtime.errors import MixplanError

__all__ = ["machine_limits"]

_LARGEST = 1 << 28
# Where nothing can be measured: only their ratio matters to shares, and a decode step is bound by bytes on either side of it.
_NOMINAL = (20e9, 100e9)


def machine_limits(working_set: int) -> tuple[Limits, str]:
    """Ceilings of all cores for a step that reads `working_set` bytes, and what they are, in words."""
    try:
        from mixplan.targets.cpu.ceilings import measure

        cores = allowed_cores()
        size = max(min(working_set, _LARGEST), 1 << 20)
        found = measure(sizes=(size,), threads=(cores,), rounds=3)
        rate, peak = found.bandwidth(size) * 1e9, found.peak("fp32") * 1e9
    except (MixplanError, OSError, ImportError) as error:
        reason = str(error).splitlines()[0]
        bandwidth, peak = _NOMINAL
        return Limits(lambda _: bandwidth, f32=peak), f"roofline of a nominal machine (20 GB/s, 100 GFLOP/s f32): {reason}"
    words = f"roofline of this machine: {rate / 1e9:.0f} GB/s at this model's size, {peak / 1e9:.0f} GFLOP/s f32, {cores} threads"
    return Limits(lambda _: rate, f32=peak), words
