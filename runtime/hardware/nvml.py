"""Records and samples of NVIDIA GPUs, by their management library (the package nvidia-ml-py, `mixplan[nvml]`), where both are there."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from mixplan.runtime.hardware.measured import read_measured
from mixplan.runtime.hardware.pcie import link_rate
from mixplan.runtime.hardware.record import Hardware, Sample

__all__ = ["Nvml", "open_nvml"]

# CUDA cores of a multiprocessor by compute capability (CUDA C++ Programming Guide, "Compute Capabilities").
_CORES_PER_SM = {(7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64, (8, 6): 128, (8, 7): 128, (8, 9): 128, (9, 0): 128}
_NEWER_CORES_PER_SM = 128


def open_nvml() -> Nvml | None:
    """The library, ready; None where the package, the driver or a GPU is missing."""
    try:
        module = importlib.import_module("pynvml")
        module.nvmlInit()
        library = Nvml(module)
        return library if library.count else None
    except Exception:  # the package's own errors, or a broken driver: then there are no records
        return None


class Nvml:
    """`library` is the module pynvml, or one like it. What a call cannot tell (older GPUs, virtual ones, missing rights) is None."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self.count = int(library.nvmlDeviceGetCount())
        self._handles = [library.nvmlDeviceGetHandleByIndex(index) for index in range(self.count)]

    def records(self) -> list[Hardware]:
        """One for each GPU."""
        return [read_measured(self._record(index, handle)) for index, handle in enumerate(self._handles)]

    def source(self, index: int) -> Callable[[], Sample]:
        """What samples GPU `index`."""
        handle = self._handles[index]

        def sample() -> Sample:
            library = self._library
            milliwatts = self._ask("nvmlDeviceGetPowerUsage", handle)
            return Sample(
                free=_whole(getattr(self._memory(handle), "free", None)),
                temperature=_real(self._ask("nvmlDeviceGetTemperature", handle, getattr(library, "NVML_TEMPERATURE_GPU", 0))),
                power=None if _real(milliwatts) is None else float(milliwatts) / 1e3,
                clock=self._clock("nvmlDeviceGetClockInfo", handle),
            )

        return sample

    def _record(self, index: int, handle: Any) -> Hardware:
        name = self._ask("nvmlDeviceGetName", handle)
        capability = self._ask("nvmlDeviceGetCudaComputeCapability", handle)
        memory = self._memory(handle)
        total, reserved = (_whole(getattr(memory, field, None)) for field in ("total", "reserved"))
        multiprocessors = self._multiprocessors(handle, capability)
        return Hardware(
            device=f"gpu:{index}",
            model=name.decode("utf-8", "replace") if isinstance(name, bytes) else name if isinstance(name, str) else None,
            arch=f"sm_{capability[0]}{capability[1]}" if capability else None,
            cores=multiprocessors,
            machine_cores=multiprocessors,
            clock=self._clock("nvmlDeviceGetMaxClockInfo", handle),
            memory=total,
            memory_limit=total if total is None or reserved is None else total - reserved,
            link=self._link(handle),
            memory_rate=self._memory_rate(handle),
        )

    def _multiprocessors(self, handle: Any, capability: Any) -> int | None:
        counted = _whole(getattr(self._ask("nvmlDeviceGetAttributes", handle), "multiprocessorCount", None))
        if counted:
            return counted
        cores = _whole(self._ask("nvmlDeviceGetNumGpuCores", handle))
        if not cores or not capability:
            return None
        return cores // _CORES_PER_SM.get(tuple(capability), _NEWER_CORES_PER_SM)

    def _memory(self, handle: Any) -> Any:
        """The second version tells what the driver keeps for itself; the first counts it as used."""
        second = getattr(self._library, "nvmlMemory_v2", None)
        found = self._ask("nvmlDeviceGetMemoryInfo", handle, second) if second is not None else None
        return found if found is not None else self._ask("nvmlDeviceGetMemoryInfo", handle)

    def _clock(self, function: str, handle: Any) -> float | None:
        megahertz = _real(self._ask(function, handle, getattr(self._library, "NVML_CLOCK_SM", 1)))
        return None if megahertz is None else megahertz * 1e6

    def _link(self, handle: Any) -> float | None:
        generation, width = (_whole(self._ask(f"nvmlDeviceGetMaxPcieLink{what}", handle)) for what in ("Generation", "Width"))
        return link_rate(generation, width)

    def _memory_rate(self, handle: Any) -> float | None:
        """Two transfers a clock on every line of the bus."""
        megahertz = _real(self._ask("nvmlDeviceGetMaxClockInfo", handle, getattr(self._library, "NVML_CLOCK_MEM", 2)))
        bits = _whole(self._ask("nvmlDeviceGetMemoryBusWidth", handle))
        return 2 * megahertz * 1e6 * bits / 8 if megahertz and bits else None

    def _ask(self, function: str, *arguments: Any) -> Any:
        try:
            return getattr(self._library, function)(*arguments)
        except Exception:  # NVMLError of many kinds, or a library that lacks the function
            return None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _real(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
