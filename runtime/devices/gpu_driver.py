"""The driver of the GPU that is here, NVIDIA's or AMD's, by ctypes: neither torch nor a toolkit is needed.

The architecture of an AMD GPU is read off the struct of its properties, whose layout differs between versions of HIP. No field is
addressed for it: the one text in the struct that reads gfx and digits is the architecture, wherever it stands.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from mixplan.runtime.devices.gpu_api import DRIVERS, Api
from mixplan.runtime.errors import InternalError

__all__ = ["ARCHS", "Driver", "find_driver", "search"]

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
_FAMILIES = {8: "sm_80", 9: "sm_90", 10: "sm_100"}
"""What is built, by the compute capability's major number. sm_90 and sm_100 binaries are for exactly that capability."""
_AMD = frozenset({"gfx942"})
ARCHS = (*_FAMILIES.values(), *sorted(_AMD))
"""The architectures that binaries are built for."""
_PROPERTIES = 16 * 1024  # bytes; the struct has about 1.5 kB
_GFX = re.compile(rb"\bgfx[0-9]+[0-9a-f]{2}\b")


class Driver:
    """One GPU through its driver. `library` is that of `api`, or what a test puts in its place."""

    def __init__(self, library: Any, api: Api, ordinal: int = 0) -> None:
        self.api = api
        self._functions = {}
        for step, (name, types) in api.functions.items():
            function = getattr(library, name, None)
            if function is None:
                raise InternalError(f"{api.title} has no function {name}; a newer one is needed")
            function.argtypes, function.restype = types, ctypes.c_int
            self._functions[step] = function
        self.call("init", 0)
        count = ctypes.c_int()
        self.call("count", ctypes.byref(count))
        if count.value == 0:
            raise InternalError(f"{api.title} sees no GPU")
        device = ctypes.c_int()
        self.call("device", ctypes.byref(device), ordinal)
        self._device = device.value
        told = ctypes.create_string_buffer(256)
        self.call("name", told, len(told), self._device)
        self.gpu = told.value.decode(errors="replace")
        self.kind, self.arch, self.real_arch = self._gfx() if "properties" in api.functions else self._capability()

    def describe(self) -> str:
        """For people."""
        return f"{self.gpu}, {self.kind}"

    def _capability(self) -> tuple[str, str, str]:
        """(compute capability in words, architecture whose binaries run, "" for none, its own)."""
        major, minor = self.attribute(_MAJOR), self.attribute(_MINOR)
        exact = minor == 0 or major == 8  # code for 8.0 runs on 8.6 and 8.9 too
        return f"compute capability {major}.{minor}", _FAMILIES.get(major, "") if exact else "", f"sm_{major}{minor}"

    def total_memory(self) -> int | None:
        """Bytes of the GPU's memory; None where the driver is not asked for it."""
        if "total_memory" not in self.api.functions:
            return None
        size = ctypes.c_size_t()
        self.call("total_memory", ctypes.byref(size), self._device)
        return size.value

    def attribute(self, number: int) -> int:
        """A CU_DEVICE_ATTRIBUTE. Only of NVIDIA's driver."""
        value = ctypes.c_int()
        self.call("attribute", ctypes.byref(value), number, self._device)
        return value.value

    def _gfx(self) -> tuple[str, str, str]:
        """(what AMD calls the architecture in words, the same where binaries are built for it, in any case)."""
        properties = ctypes.create_string_buffer(_PROPERTIES)
        self.call("properties", properties, self._device)
        # The first text of the struct is the GPU's name.
        found = _GFX.search(properties.raw, len(self.gpu.encode()))
        name = found[0].decode() if found else ""
        return f"architecture {name or 'unknown'}", name if name in _AMD else "", name

    def status(self, step: str, *arguments: Any) -> int:
        """Take a step of the Api; the driver's status."""
        return int(self._functions[step](*arguments))

    def call(self, step: str, *arguments: Any) -> None:
        """Take a step of the Api; MemoryError or InternalError with the driver's own words where it fails."""
        status = self.status(step, *arguments)
        name = self.api.functions[step][0]
        if status == self.api.out_of_memory:
            raise MemoryError(name)
        if status:
            text = ctypes.c_char_p()
            self.status("error", status, ctypes.byref(text))
            told = (text.value or b"unknown error").decode(errors="replace")
            raise InternalError(f"{self.api.title}: {name} failed: {told} ({status}).")

    def retain(self) -> int:
        """The device's primary context, which torch would use too; 0 where the driver has none."""
        if not self.api.context:
            return 0
        context = ctypes.c_void_p()
        self.call("retain", ctypes.byref(context), self._device)
        return context.value or 0

    def bind(self, context: int) -> None:
        """A thread that uses the driver must have said with which context, or which device."""
        self.call("bind", context if self.api.context else self._device)

    def release(self) -> None:
        """Give the context back."""
        if self.api.context:
            self.status("release", self._device)


def _try(api: Api) -> tuple[Driver | None, str]:
    library = api.open()
    if library is None:
        return None, api.absent
    try:
        return Driver(library, api), ""
    except (InternalError, MemoryError) as error:
        return None, str(error)


def search(apis: Sequence[Api]) -> tuple[Driver | None, str]:
    """The first GPU of the first driver that has one, or None and why there is none."""
    reasons = []
    for api in apis:
        driver, reason = _try(api)
        if driver is not None:
            return driver, ""
        reasons.append(reason)
    return None, "; ".join(reasons)


@cache
def find_driver() -> tuple[Driver | None, str]:
    """The first GPU of this machine, or None and why there is none."""
    return search(DRIVERS)
