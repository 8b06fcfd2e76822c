"""What runs launches: memory, kernels and graphs of one GPU, behind one interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from mixplan.runtime.devices.gpu_program import Kernel, Program
from mixplan.runtime.hal import Array

__all__ = ["Backend", "Pointer", "Ready"]


class Pointer(Protocol):
    """Memory on the GPU that a back end gave out."""

    nbytes: int


Ready = Callable[[], None]
"""A launch, or many of them, with all arguments in place."""


class Backend(Protocol):
    """One GPU. Errors are MixplanErrors: CapacityError where memory is short, UnsupportedError where a kernel does not load."""

    name: str
    """For people: the device and what drives it."""
    arch: str
    """The architecture whose program it takes; "jit" where it compiles by itself."""

    def allocate(self, nbytes: int, what: str) -> Pointer:
        """Memory of zeros."""

    def upload(self, to: Pointer, offset: int, array: Array) -> None:
        """Copy a contiguous array to `offset` bytes into memory."""

    def download(self, source: Pointer, offset: int, into: Array) -> None:
        """Copy from `offset` bytes into memory to a contiguous array, after all launches so far are done."""

    def load(self, program: Program, binaries: memoryview) -> list[Any]:
        """The kernels of a program, ready for `prepare`."""

    def prepare(
        self, loaded: Any, kernel: Kernel, grid: tuple[int, int, int], arguments: Sequence[tuple[Pointer, int] | int | None]
    ) -> Ready:
        """A launch with these arguments: (memory, offset in bytes), numbers, None for pointers that are left out."""

    def graph(self, launches: Sequence[Ready]) -> Ready | None:
        """All launches as one, None where the back end has no such thing."""

    def seconds(self, launches: Sequence[Ready]) -> float:
        """What all launches together take on the device, the median of some rounds."""

    def close(self) -> None:
        """Give everything back."""
