"""A region's shared library: found, loaded and checked. Native code comes from the plan only where the plan is trusted."""

from __future__ import annotations

import ctypes
import os
import sys
from _ctypes import dlclose
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from mixplan.runtime.devices.cpu_abi import (
    ABI_VERSION,
    CreateArgs,
    DecodeArgs,
    StepArgs,
    attention_layers,
    logits_columns,
    region_constants,
    region_fingerprint,
)
from mixplan.runtime.devices.cpu_info import isa_level_names, level_refusal, runnable_levels
from mixplan.runtime.devices.elf import elf_problem
from mixplan.runtime.errors import OptionError, UnsupportedError
from mixplan.runtime.hal import Fault
from mixplan.runtime.plan import Region
from mixplan.runtime.plan_io import LoadedPlan

__all__ = ["Library", "open_library"]

_REBUILD_TIMEOUT = 900  # seconds


class Library:
    """The functions of a loaded region. `level` is its ISA level, `origin` says where it came from; `name`, `faults`: see open_library."""

    def __init__(self, path: str, level: str, origin: str, descriptor: int = -1) -> None:
        self.level = level
        self.origin = origin
        self._descriptor = descriptor
        self.name = ""
        self.faults: tuple[Fault, ...] = ()
        try:
            problem = elf_problem(path)
            self._library: ctypes.CDLL | None = None if problem else ctypes.CDLL(path)
        except OSError as error:
            problem = str(error)
        if problem:
            self._close_descriptor()
            raise UnsupportedError(f"The {level} kernels cannot be loaded: {problem}.")
        library = self.functions
        try:
            library.mixplan_describe.argtypes = [ctypes.POINTER(ctypes.c_int64)]
            library.mixplan_describe.restype = None
            library.mixplan_create.argtypes = [ctypes.POINTER(CreateArgs)]
            library.mixplan_create.restype = ctypes.c_void_p
            library.mixplan_step.argtypes = [ctypes.c_void_p, ctypes.POINTER(StepArgs)]
            library.mixplan_step.restype = ctypes.c_int32
            library.mixplan_decode.argtypes = [ctypes.c_void_p, ctypes.POINTER(DecodeArgs)]
            library.mixplan_decode.restype = ctypes.c_int32
            library.mixplan_destroy.argtypes = [ctypes.c_void_p]
            library.mixplan_destroy.restype = None
            for name in ("mixplan_kv_page_bytes", "mixplan_scratch_bytes"):
                function = getattr(library, name)
                function.argtypes, function.restype = [ctypes.c_int64], ctypes.c_int64
            library.mixplan_profile.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_int64), ctypes.POINTER(ctypes.c_int32)]
            library.mixplan_profile.restype = None
        except AttributeError as error:
            self.close()
            raise UnsupportedError(f"The {level} kernels are not a library of mixplan: {error}.") from error
        facts = (ctypes.c_int64 * 16)()
        library.mixplan_describe(facts)
        self.abi, self.arena_bytes, self.constants, self.inputs, self.outputs, self.layers, self.max_tokens, self.ops = facts[:8]
        self.fingerprint, self.logits = facts[8:10]

    @property
    def functions(self) -> ctypes.CDLL:
        """The library; only while it is open."""
        if self._library is None:
            raise RuntimeError("the kernel library is closed")
        return self._library

    def check(self, plan: LoadedPlan, region: Region) -> None:
        """UnsupportedError where the library was built for another region, plan or version."""
        expected = (
            ABI_VERSION,
            len(region_constants(plan.plan, region)),
            len(region.inputs),
            len(region.outputs),
            len(attention_layers(plan.plan, region)),
            plan.plan.max_step_tokens,
            logits_columns(plan.plan, region),
        )
        found = (self.abi, self.constants, self.inputs, self.outputs, self.layers, self.max_tokens, self.logits)
        if found != expected or self.arena_bytes < 0:
            raise UnsupportedError(
                f"The {self.level} kernels of region {region.name!r} do not belong to it: "
                f"(ABI, constants, inputs, outputs, attention layers, step tokens, columns of logits) are {found}, not {expected}.",
                hint="Compile the plan again with this version of mixplan.",
            )
        if self.fingerprint != region_fingerprint(plan.plan, region):
            raise UnsupportedError(
                f"The {self.level} kernels of region {region.name!r} do not belong to it: they were made for other shapes or attributes.",
                hint="Compile the plan again.",
            )

    def close(self) -> None:
        """Unload. Handles must have been destroyed."""
        if self._library is not None:
            handle, self._library = self._library._handle, None
            dlclose(handle)
        self._close_descriptor()

    def _close_descriptor(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def open_library(plan: LoadedPlan, region: Region, isa: str | None) -> Library:
    """The best library for this CPU, or for the level `isa`.

    From the plan where it is trusted and has one that can be loaded; otherwise compiled anew, by mixplan's own code generator in another
    process. `Library.name` says which one it is, `Library.faults` what was tried before.
    OptionError for an unknown level, UnsupportedError where this CPU cannot run the level or no library can be had.
    """
    runnable = runnable_levels()
    if isa is not None:
        if isa not in isa_level_names():
            raise OptionError(f"there is no ISA level {isa!r}.", hint=f"Levels: {', '.join(isa_level_names())}.")
        if isa not in runnable:
            raise UnsupportedError(
                f"This CPU cannot run kernels of level {isa}: {level_refusal(isa)}.", hint=f"It runs: {', '.join(runnable) or 'none'}."
            )
    if not runnable:
        raise UnsupportedError("There is no kernel level for this CPU's architecture.")
    wanted = runnable if isa is None else (isa,)
    faults: list[Fault] = []
    for name, make in _candidates(plan, region, wanted, faults):
        try:
            library = make()
            if library is None:
                continue
            try:
                library.check(plan, region)
            except BaseException:
                library.close()
                raise
        except (UnsupportedError, OSError) as error:
            faults.append(Fault(name, error.message if isinstance(error, UnsupportedError) else str(error)))
            continue
        library.name, library.faults = name, tuple(faults)
        return library
    raise UnsupportedError(" ".join(fault.reason for fault in faults))


def _candidates(
    plan: LoadedPlan, region: Region, wanted: tuple[str, ...], faults: Sequence[Fault]
) -> Iterator[tuple[str, Callable[[], Library | None]]]:
    """The ways to a library, best first, each with a name. faults: of those tried so far."""
    for level in wanted:
        path = region.kernels.get(level)
        if plan.trusted and path is not None:
            yield f"the plan's {level} kernels", partial(_from_plan, plan, level, path)
    yield f"kernels compiled here for {wanted[0]}", partial(_rebuilt, plan, region, wanted[0], faults)


def _from_plan(plan: LoadedPlan, level: str, path: str) -> Library | None:
    """None where the kernels are of another version of mixplan."""
    # What is loaded is what was verified: the file itself could change between the two.
    descriptor = os.memfd_create(f"mixplan-{level}", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(plan.read_file(path))
    except BaseException:
        os.close(descriptor)
        raise
    library = Library(f"/proc/self/fd/{descriptor}", level, f"the plan's {level} kernels ({plan.trust_reason})", descriptor)
    if library.abi == ABI_VERSION:
        return library
    library.close()
    return None


def _rebuilt(plan: LoadedPlan, region: Region, level: str, faults: Sequence[Fault]) -> Library:
    broken = "has kernels that cannot be loaded" if faults else "has no kernels for this CPU and this version"
    why = broken if plan.trusted else f"is not trusted ({plan.trust_reason})"
    origin = f"compiled here for {level}, since the plan {why}"
    path = _compiled(plan, region, level, why)
    try:
        return Library(str(path), level, origin)
    except UnsupportedError:
        # It came from the cache, where it was damaged.
        path.unlink(missing_ok=True)
    return Library(str(_compiled(plan, region, level, why)), level, origin)


def _compiled(plan: LoadedPlan, region: Region, level: str, why: str) -> Path:
    """The path of the region's library in the cache, compiled if it is not there."""
    # Imported here, since it takes longer than a library that need not be compiled.
    import subprocess

    command = [sys.executable, "-P", "-m", "mixplan.targets.cpu", "rebuild", f"--region={region.name}", f"--isa={level}"]
    # The kernels must be those of the plan that was verified, not of one that was put in its place since.
    command += [f"--digest={plan.digest}", "--", str(plan.root)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_REBUILD_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnsupportedError(f"The plan {why}, and its kernels cannot be compiled here: {error}.") from error
    path = Path(done.stdout.strip().splitlines()[-1]) if done.returncode == 0 and done.stdout.strip() else None
    if path is None or not path.is_file():
        words = " ".join(done.stderr.split())[-600:]
        raise UnsupportedError(f"The plan {why}, and its kernels cannot be compiled here: {words}")
    return path
