"""A machine's ceilings from its hardware record, which is all that cost models know of it."""

from __future__ import annotations

from mixplan.runtime.cost.roofline import Limits
from mixplan.runtime.errors import UnsupportedError
from mixplan.runtime.hardware.record import Hardware

__all__ = ["record_limits"]


def record_limits(record: Hardware) -> Limits:
    """Ceilings of all cores together. A dtype that has no unit of its own is computed in f32, as kernels do. UnsupportedError where nothing
    was measured.
    """
    if not record.bandwidth:
        raise UnsupportedError(f"Nothing was measured on {record.device} yet.", hint="`mixplan targets --measure` does.")
    peaks = record.peaks or {}
    f32 = peaks.get("f32", 0.0)
    return Limits(lambda size: record.read_rate(size) or 0.0, peaks.get("int8", f32), peaks.get("bf16", f32), f32)
