"""The GPU device: programs that the GPU target made, run through its driver, or by torch where there is no other way."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mixplan.runtime.devices.cpu_abi import region_fingerprint
from mixplan.runtime.devices.gpu_backend import Backend
from mixplan.runtime.devices.gpu_driver import ARCHS, find_driver
from mixplan.runtime.devices.gpu_native import DriverBackend
from mixplan.runtime.devices.gpu_program import Program, decode_program
from mixplan.runtime.devices.gpu_region import GpuRegion
from mixplan.runtime.errors import InternalError, MissingExtraError, MixplanError, OptionError, PlanError, UnsupportedError
from mixplan.runtime.hal import PAGE_SIZE, CacheSpec, DeviceOptions, Fault, LoadedRegion, Support
from mixplan.runtime.plan import Region
from mixplan.runtime.plan_io import LoadedPlan

__all__ = ["INTERPRET", "JIT", "LEVELS", "GpuDevice"]

INTERPRET = "interpret"
"""The `isa` that runs kernels in Triton's interpreter, on the CPU."""
_NODES = ("/dev/kfd", "/dev/nvidiactl", "/dev/dxg")
"""What the drivers of AMD, NVIDIA, and Windows beneath WSL put there."""

JIT = "jit"
"""The `isa` that has torch and triton compile and launch them."""

LEVELS = (*ARCHS, JIT, INTERPRET)
"""All that `isa` may be."""

_ADVICE = "device='reference' runs the plan without one, isa='interpret' its kernels on the CPU (slowly)"


class GpuDevice:
    """Runs regions on a GPU. `isa`: an architecture that the GPU runs, "jit" or "interpret"; by default what fits best.

    OptionError for any other, whatever GPU is here.
    """

    name = "gpu"

    def __init__(self, options: DeviceOptions) -> None:
        self._isa = options.isa
        if self._isa is not None and self._isa not in LEVELS:
            raise OptionError(f"there is no GPU architecture {self._isa!r}.", hint=f"Architectures: {', '.join(LEVELS)}.")

    def supported(self) -> Support:
        """Where there is a GPU with NVIDIA's driver or AMD's, or torch sees one."""
        if self._isa == INTERPRET:
            return Support(True, "Triton's interpreter runs the kernels on the CPU, for tests")
        driver, reason = find_driver()
        if driver is not None:
            return Support(True, driver.describe())
        name = _gpu_of_torch()
        return Support(True, f"torch drives {name}") if name else Support(False, f"there is no GPU: {reason}; {_ADVICE}")

    def load(self, plan: LoadedPlan, region_index: int, caches: CacheSpec) -> LoadedRegion:
        """See Device.load."""
        if caches.page_size != PAGE_SIZE:
            raise InternalError(f"The GPU kernels are built for pages of {PAGE_SIZE} tokens, not {caches.page_size}.")
        faults: list[Fault] = []
        ways = self._ways()
        for number, (name, make) in enumerate(ways):
            try:
                region = _loaded(plan, region_index, caches, make())
            except (UnsupportedError, MissingExtraError) as error:
                if number == len(ways) - 1:
                    raise
                faults.append(Fault(name, error.message))
                continue
            region.implementation, region.faults = name, (*faults, *region.faults)
            return region
        raise InternalError("no way to run a region on a GPU was tried")

    def _ways(self) -> list[tuple[str, Callable[[], Backend]]]:
        """What may run regions here, best first: the driver, then torch. An `isa` leaves one of them."""
        if self._isa == INTERPRET:
            return [("Triton's interpreter", lambda: _torch_backend(True))]
        driver, reason = find_driver()
        ways: list[tuple[str, Callable[[], Backend]]] = []
        if driver is not None and self._isa != JIT:
            if self._isa not in (None, driver.arch):
                raise UnsupportedError(f"isa is {self._isa!r}, but the GPU here runs {driver.arch!r}.", hint="Leave isa out.")
            ways.append((driver.api.title, lambda: DriverBackend(driver)))
        if self._isa in (None, JIT) and _gpu_of_torch():
            ways.append(("torch on the GPU", lambda: _torch_backend(False)))
        if not ways:
            raise UnsupportedError(f"There is no GPU: {reason}.", hint=f"{_ADVICE}.")
        return ways


def _loaded(plan: LoadedPlan, region_index: int, caches: CacheSpec, backend: Backend) -> GpuRegion:
    try:
        program, binaries, faults = _program(plan, region_index, backend.arch)
        region = GpuRegion(plan, region_index, caches, backend, program, binaries)
        region.faults = faults
        return region
    except BaseException:
        backend.close()
        raise


def _torch_backend(interpret: bool) -> Backend:
    made: Backend = _targets("torch_backend", "TorchBackend")(interpret)
    return made


def _gpu_of_torch() -> str:
    """The GPU that torch would use, "" for none. Importing torch takes seconds, so it is only asked where the system shows a GPU."""
    if not any(Path(node).exists() for node in _NODES):
        return ""
    return str(_targets("torch_backend", "gpu_of_torch")())


def _targets(module: str, name: str) -> Any:
    """A function of the compile half, looked up by name: the runtime does without it, and a lean installation lacks its packages."""
    return getattr(importlib.import_module(f"mixplan.targets.gpu.{module}"), name)


def _program(plan: LoadedPlan, region_index: int, arch: str) -> tuple[Program, memoryview, tuple[Fault, ...]]:
    """The plan's own program for `arch` where the plan is trusted and has a sound one, else one made here; and what was wrong with it."""
    region = plan.plan.regions[region_index]
    path = region.kernels.get(arch)
    faults: tuple[Fault, ...] = ()
    if path is None:
        why = f"the plan has none for it, but for {', '.join(sorted(region.kernels)) or 'no GPU'}"
    elif not plan.trusted:
        why = plan.trust_reason
    else:
        # A file that is not the one that was written is an error; one that was written wrongly is replaced.
        data = plan.read_file(path)
        try:
            return *_fitting(plan, region, arch, data, f"{plan.root}/{path}"), ()
        except PlanError as error:
            why = error.message.rstrip(".")
            faults = (Fault(f"the plan's {arch} kernels", error.message),)
    try:
        data = _targets("rebuild", "rebuild")(plan.plan, region_index, arch)
    except MixplanError as error:
        raise UnsupportedError(
            f"Kernels for {arch} would have to be built here, since {why}; that failed: {error.message}",
            hint=error.hint or "Compile the plan with --arch " + arch,
        ) from error
    return *_fitting(plan, region, arch, data, f"what was built here for {arch}"), faults


def _fitting(plan: LoadedPlan, region: Region, arch: str, data: bytes, where: str) -> tuple[Program, memoryview]:
    """A program and its binaries. PlanError where it is none, or another region's."""
    program, binaries = decode_program(data, where)
    if program.arch != arch or program.fingerprint != region_fingerprint(plan.plan, region):
        raise PlanError(
            f"The {arch} kernels of region {region.name!r} do not belong to it: they were made for other shapes or attributes.",
            hint="Compile the plan again.",
        )
    return program, binaries
