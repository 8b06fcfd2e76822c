"""The architectures that kernels are built for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mixplan.runtime.devices.gpu_driver import find_driver
from mixplan.runtime.errors import OptionError

__all__ = ["ARCHS", "DEFAULT", "JIT", "Arch", "arch_of", "resolve_archs"]


@dataclass(frozen=True)
class Arch:
    """units: streaming multiprocessors (compute units on AMD) of the largest GPU of the kind. shared: bytes of shared memory of a block.

    fp8: whether it multiplies e4m3 numbers as the OCP format defines them. devices: what it stands for.
    """

    name: str
    units: int
    shared: int
    fp8: bool
    devices: str


JIT = "jit"
"""A program without binaries, which the torch-backed launcher compiles where it runs (or interprets, where there is no GPU)."""

ARCHS = {
    arch.name: arch
    for arch in (
        Arch("sm_80", 108, 163 * 1024, False, "NVIDIA A100"),
        Arch("sm_90", 132, 227 * 1024, True, "NVIDIA H100, H200"),
        Arch("sm_100", 148, 227 * 1024, True, "NVIDIA B200"),
        Arch("gfx942", 304, 64 * 1024, False, "AMD MI300X"),
        Arch(JIT, 108, 64 * 1024, False, "any that torch and triton run on"),
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
