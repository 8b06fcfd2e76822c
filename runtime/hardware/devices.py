"""All devices of this machine."""

from __future__ import annotations

from functools import cache

from mixplan.runtime.hardware.amdgpu import find_amd
from mixplan.runtime.hardware.cpu import CpuSource, cpu_record
from mixplan.runtime.hardware.cuda import find_cuda
from mixplan.runtime.hardware.nvml import Nvml, open_nvml
from mixplan.runtime.hardware.onnx import onnx_records
from mixplan.runtime.hardware.record import Hardware, Sample
from mixplan.runtime.hardware.sampler import Sampler

__all__ = ["devices", "hardware", "samples"]


@cache
def hardware() -> Hardware:
    """The CPU's record, read once; `hardware.cache_clear()` after new figures were measured."""
    return cpu_record()


@cache
def _nvml() -> Nvml | None:
    return open_nvml()


def devices() -> tuple[Hardware, ...]:
    """The CPU, then GPUs, then what onnxruntime reaches (which imports it). NVIDIA's by NVML, else, the first only, by the driver."""
    library = _nvml()
    nvidia = library.records() if library is not None else find_cuda()
    amd = [gpu.record(len(nvidia) + index) for index, gpu in enumerate(find_amd())]
    return (hardware(), *nvidia, *amd, *onnx_records())


@cache
def _sampler() -> Sampler:
    library = _nvml()
    nvidia = [library.source(index) for index in range(library.count)] if library is not None else []
    first = len(nvidia) if library is not None else len(find_cuda())  # the driver tells of a GPU, but samples none
    amd = {f"gpu:{first + index}": gpu.source() for index, gpu in enumerate(find_amd())}
    return Sampler({"cpu": CpuSource(), **{f"gpu:{index}": source for index, source in enumerate(nvidia)}, **amd})


def samples() -> dict[str, Sample]:
    """What changes, by device: a tenth of a second old at most, however often it is asked for."""
    return _sampler().latest()
