"""What work on a GPU costs, by its hardware record: as measured on it, or estimated from its units and clock.

Nothing here was compared with a run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mixplan.runtime.hardware import Hardware
from mixplan.targets.base import CostModel
from mixplan.targets.gpu.arch import ARCHS, Arch

__all__ = ["gpu_costs", "gpu_record"]

# Dense operations of one multiprocessor (compute unit on AMD) in a clock, a multiply-add being two: int8 and bf16 on the tensor units, f32
# on the ordinary ones (NVIDIA's architecture white papers for A100, GA102, Ada, H100 and Blackwell; AMD's for CDNA 3).
_RATES: Mapping[str, tuple[int, int, int]] = {
    "sm_80": (4096, 2048, 128),
    "sm_86": (2048, 1024, 256),
    "sm_87": (2048, 1024, 256),
    "sm_89": (2048, 1024, 256),
    "sm_90": (8192, 4096, 256),
    "sm_100": (16384, 8192, 256),
    "gfx942": (4096, 2048, 256),
}
_LAUNCH = 3e-6
"""Seconds from one launch of a small kernel to the next, of a few microseconds on any GPU."""
_CALL = 30e-6
"""Seconds of a region's call besides: some small copies there, one back, and the waiting for it."""
_WEIGHTS = 1 << 30  # a working set that no cache holds


def _family(arch: str | None) -> str:
    """What is built for a GPU that NVML or the kernel calls so."""
    return "sm_80" if arch in ("sm_86", "sm_87", "sm_89") else arch or ""


def gpu_record(records: Sequence[Hardware], wanted: Sequence[str]) -> Hardware:
    """The record that costs are read from: of the first GPU here that runs one of the `wanted` architectures (any, where none is named),
    with what it does not tell being nominal; where there is none, the nominal one of the first that is wanted, or of sm_90.
    """
    for record in records:
        family = _family(record.arch)
        if record.device.startswith("gpu:") and family in ARCHS and (not wanted or family in wanted):
            return _completed(record, ARCHS[family])
    return ARCHS[next(iter(wanted), "sm_90")].nominal


def _completed(record: Hardware, arch: Arch) -> Hardware:
    lacking = [name for name in ("cores", "clock", "memory_rate", "link") if getattr(record, name) is None]
    return replace(record, **{name: getattr(arch.nominal, name) for name in lacking})


def gpu_costs(record: Hardware) -> CostModel:
    """Measured figures where the record has them, else a peak of every unit in every clock."""
    cores, clock = record.cores or 1, record.clock or 1e9
    int8, bf16, f32 = (rate * cores * clock for rate in _RATES.get(record.arch or "", _RATES["sm_80"]))
    peaks = {"int8": int8, "bf16": bf16, "f32": f32, **(record.peaks or {})}
    measured = record.read_rate(_WEIGHTS)
    where = "estimated" if record.device.startswith("gpu:") else "nominal"
    told = f"{where}: {record.model or record.arch}, {cores} units at {clock / 1e9:.4g} GHz"
    return CostModel(
        measured or record.memory_rate or 1e12,
        peaks["int8"],
        peaks["bf16"],
        peaks["f32"],
        call_seconds=_CALL,
        node_seconds=_LAUNCH,
        narrow=True,
        link=record.link or 0.0,
        source=f"measured at {record.measured_at}" if measured and record.peaks else told,
    )
