"""The CUDA driver's API (libcuda.so.1) by ctypes: neither torch nor a CUDA toolkit is needed, only NVIDIA's driver."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from mixplan.runtime.errors import InternalError

__all__ = ["Driver", "find_driver"]

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
_FAMILIES = {8: "sm_80", 9: "sm_90", 10: "sm_100"}
"""What is built, by the compute capability's major number. sm_90 and sm_100 binaries are for exactly that capability."""


class Driver:
    """One GPU through the driver. `library` is libcuda, or what a test puts in its place."""

    def __init__(self, library: Any, ordinal: int = 0) -> None:
        self._library = library
        self.call("cuInit", 0)
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        if count.value == 0:
            raise InternalError("the NVIDIA driver sees no GPU")
        self._device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(self._device), ordinal)
        name = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", name, len(name), self._device)
        self.gpu = name.value.decode(errors="replace")
        major, minor = self._attribute(_MAJOR), self._attribute(_MINOR)
        exact = minor == 0 or major == 8  # code for 8.0 runs on 8.6 and 8.9 too
        self.arch = _FAMILIES.get(major, "") if exact else ""
        self.capability = f"{major}.{minor}"

    def describe(self) -> str:
        """For people."""
        return f"{self.gpu}, compute capability {self.capability}"

    def _attribute(self, number: int) -> int:
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), number, self._device)
        return value.value

    def status(self, name: str, *arguments: Any) -> int:
        """Call a function of the driver; its CUresult."""
        return int(getattr(self._library, name)(*arguments))

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the driver; MemoryError or InternalError with the driver's own words where it fails."""
        status = self.status(name, *arguments)
        if status == _OUT_OF_MEMORY:
            raise MemoryError(name)
        if status:
            text = ctypes.c_char_p()
            self._library.cuGetErrorString(status, ctypes.byref(text))
            raise InternalError(f"The CUDA driver's {name} failed: {(text.value or b'unknown error').decode()} ({status}).")

    def retain(self) -> ctypes.c_void_p:
        """The device's primary context, which torch would use too."""
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        return context

    def release(self) -> None:
        """Give the context back."""
        self.status("cuDevicePrimaryCtxRelease_v2", self._device)


@cache
def find_driver() -> tuple[Driver | None, str]:
    """The first GPU, or None and why there is none."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None, "libcuda.so.1 is not found, so there is no NVIDIA driver"
    try:
        return Driver(library), ""
    except (InternalError, MemoryError) as error:
        return None, str(error)
