"""The architectures that kernels are built for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from mixplan.runtime.devices.gpu_driver import find_driver
from mixplan.runtime.errors import OptionError
from mixplan.runtime.hardware import Hardware
from mixplan.targets.gpu.tile import Tiles

__all__ = ["ARCHS", "DEFAULT", "JIT", "Arch", "arch_of", "resolve_archs"]


@dataclass(frozen=True)
class Arch:
    """units: streaming multiprocessors (compute units on AMD) of the largest GPU of the kind. shared: bytes of shared memory of a block.

    fp8: whether it multiplies e4m3 numbers as the OCP format defines them. devices: what it stands for. nominal: the record of the largest
    GPU of the kind, from its maker's data sheet, for machines without one. tuned: tiles that take the place of the table's.
    """

    name: str
    units: int
    shared: int
    fp8: bool
    devices: str
    nominal: Hardware = field(hash=False, default=Hardware("gpu"))
    tuned: Tiles | None = field(hash=False, compare=False, default=None)


def _nominal(model: str, arch: str, cores: int, clock: float, memory: int, rate: float, link: float) -> Hardware:
    """Clock in GHz, memory in GB, rates in GB/s."""
    sizes = Hardware("gpu", model, arch, cores=cores, machine_cores=cores, memory=memory * 10**9)
    return replace(sizes, clock=clock * 1e9, link=link * 1e9, memory_rate=rate * 1e9)


_A100 = _nominal("NVIDIA A100 SXM 80GB", "sm_80", 108, 1.41, 80, 2039, 31.5)

JIT = "jit"
"""A program without binaries, which the torch-backed launcher compiles where it runs (or interprets, where there is no GPU)."""

ARCHS = {
    arch.name: arch
    for arch in (
        Arch("sm_80", 108, 163 * 1024, False, "NVIDIA A100", _A100),
        Arch("sm_90", 132, 227 * 1024, True, "NVIDIA H100, H200", _nominal("NVIDIA H100 SXM", "sm_90", 132, 1.83, 80, 3352, 63.0)),
        Arch("sm_100", 148, 227 * 1024, True, "NVIDIA B200", _nominal("NVIDIA B200", "sm_100", 148, 1.85, 180, 8000, 63.0)),
        Arch("gfx942", 304, 64 * 1024, False, "AMD MI300X", _nominal("AMD MI300X", "gfx942", 304, 2.1, 192, 5300, 63.0)),
        Arch(JIT, 108, 64 * 1024, False, "any that torch and triton run on", _A100),
    )
}
DEFAULT = ("sm_80", "sm_90", "sm_100", "gfx942")
"""What is built where nothing is said."""


def arch_of(name: str) -> Arch:
    """The architecture called `name`; OptionError where there is none."""
    if name not in ARCHS:
        raise OptionError(f"there is no GPU architecture {name!r}.", hint=f"Architectures: {', '.join(ARCHS)}.")
    return ARCHS[name]


def resolve_archs(wanted: Sequence[str]) -> tuple[str, ...]:
    """Architectures by name, each once; all but jit where none is named.

    "interpret" is the device's name for running a jit program in the interpreter, "native" what the GPU here runs.
    """
    return tuple(dict.fromkeys(arch_of(_meant(name)).name for name in wanted)) or DEFAULT


def _meant(name: str) -> str:
    if name == "native":
        driver, reason = find_driver()
        if driver is None or not driver.arch:
            raise OptionError(f"there is no GPU whose architecture 'native' could be: {reason or (driver and driver.describe())}.")
        return driver.arch
    return JIT if name == "interpret" else name
