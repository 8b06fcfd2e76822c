"""The back end on the CUDA driver: cubins, one stream, one graph for each size of a decode step."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import partial
from typing import Any

from mixplan.runtime.devices.gpu_backend import Ready
from mixplan.runtime.devices.gpu_driver import Driver, find_driver
from mixplan.runtime.devices.gpu_program import Kernel, Program
from mixplan.runtime.errors import CapacityError, InternalError, UnsupportedError
from mixplan.runtime.hal import Array

__all__ = ["CudaBackend", "find_driver"]

_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
_ORDINARY_SHARED = 48 * 1024  # more must be asked for


class _Memory:
    def __init__(self, address: int, nbytes: int) -> None:
        self.address = address
        self.nbytes = nbytes


class CudaBackend:
    """See Backend."""

    def __init__(self, driver: Driver) -> None:
        if not driver.arch:
            raise UnsupportedError(
                f"{driver.describe()} is not one of those that kernels are built for (8.x, 9.0 and 10.0).", hint="Load with isa='jit'."
            )
        self._driver = driver
        self.arch = driver.arch
        self.name = f"{driver.arch} ({driver.gpu})"
        self._context = driver.retain()
        self._memory: list[_Memory] = []
        self._modules: list[ctypes.c_void_p] = []
        self._graphs: list[ctypes.c_void_p] = []
        self._current()
        self._stream = ctypes.c_void_p()
        driver.call("cuStreamCreate", ctypes.byref(self._stream), _NON_BLOCKING)
        self._closed = False

    def _current(self) -> None:
        """A thread that uses the driver must have said with which context."""
        self._driver.call("cuCtxSetCurrent", self._context)

    def allocate(self, nbytes: int, what: str) -> _Memory:
        """See Backend.allocate."""
        self._current()
        address = ctypes.c_uint64()
        size = max(nbytes, 1)
        try:
            self._driver.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        except MemoryError:
            raise CapacityError(f"The GPU has no {nbytes} bytes for {what}.", hint="Load with a smaller kv_tokens.") from None
        memory = _Memory(address.value, nbytes)
        self._memory.append(memory)
        self._driver.call("cuMemsetD8Async", address, ctypes.c_ubyte(0), ctypes.c_size_t(size), self._stream)
        return memory

    def upload(self, to: Any, offset: int, array: Array) -> None:
        """See Backend.upload. The driver has read a pageable array when the call returns."""
        if offset < 0 or offset + array.nbytes > to.nbytes:
            raise InternalError(f"An upload of {array.nbytes} bytes at {offset} does not fit into {to.nbytes}.")
        if array.nbytes:
            self._current()
            at = ctypes.c_uint64(to.address + offset)
            self._driver.call("cuMemcpyHtoDAsync_v2", at, ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes), self._stream)

    def download(self, source: Any, offset: int, into: Array) -> None:
        """See Backend.download."""
        if offset < 0 or offset + into.nbytes > source.nbytes:
            raise InternalError(f"A download of {into.nbytes} bytes at {offset} does not fit into {source.nbytes}.")
        self._current()
        if into.nbytes:
            at = ctypes.c_uint64(source.address + offset)
            self._driver.call("cuMemcpyDtoHAsync_v2", ctypes.c_void_p(into.ctypes.data), at, ctypes.c_size_t(into.nbytes), self._stream)
        self._driver.call("cuStreamSynchronize", self._stream)

    def load(self, program: Program, binaries: memoryview) -> list[Any]:
        """A function of each kernel's cubin."""
        self._current()
        functions = []
        for kernel in program.kernels:
            data = bytes(binaries[kernel.offset : kernel.offset + kernel.nbytes])
            module, function = ctypes.c_void_p(), ctypes.c_void_p()
            try:
                self._driver.call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(data))
                self._modules.append(module)
                self._driver.call("cuModuleGetFunction", ctypes.byref(function), module, kernel.entry.encode())
                if kernel.shared > _ORDINARY_SHARED:
                    self._driver.call("cuFuncSetAttribute", function, _DYNAMIC_SHARED, kernel.shared)
            except InternalError as error:
                raise UnsupportedError(f"The kernel {kernel.name} does not load: {error.message}") from error
            functions.append(function)
        return functions

    def prepare(self, loaded: Any, kernel: Kernel, grid: tuple[int, int, int], arguments: Sequence[tuple[Any, int] | int | None]) -> Ready:
        """See Backend.prepare. Pointers left out are no parameters; two more, for scratch that no kernel asks for, end the list."""
        values: list[Any] = []
        for argument in arguments:
            if isinstance(argument, tuple):
                values.append(ctypes.c_uint64(argument[0].address + argument[1]))
            elif argument is not None:
                values.append(ctypes.c_int32(argument))
        values += [ctypes.c_uint64(0), ctypes.c_uint64(0)]
        parameters = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        return partial(self._launch, loaded, grid, kernel.threads, kernel.shared, parameters, values)

    def _launch(
        self, function: ctypes.c_void_p, grid: tuple[int, int, int], threads: int, shared: int, parameters: Any, values: list[Any]
    ) -> None:
        """values: what the parameters point to, kept alive."""
        self._driver.call("cuLaunchKernel", function, *grid, threads, 1, 1, shared, self._stream, parameters, None)

    def graph(self, launches: Sequence[Ready]) -> Ready | None:
        """See Backend.graph."""
        self._current()
        captured, executable = ctypes.c_void_p(), ctypes.c_void_p()
        self._driver.call("cuStreamBeginCapture_v2", self._stream, _THREAD_LOCAL)
        try:
            for launch in launches:
                launch()
        finally:
            self._driver.call("cuStreamEndCapture", self._stream, ctypes.byref(captured))
        try:
            self._driver.call("cuGraphInstantiateWithFlags", ctypes.byref(executable), captured, ctypes.c_uint64(0))
        finally:
            self._driver.status("cuGraphDestroy", captured)
        self._graphs.append(executable)
        return partial(self._driver.call, "cuGraphLaunch", executable, self._stream)

    def close(self) -> None:
        """See Backend.close."""
        if self._closed:
            return
        self._closed = True
        self._current()
        self._driver.status("cuStreamSynchronize", self._stream)
        for graph in self._graphs:
            self._driver.status("cuGraphExecDestroy", graph)
        for module in self._modules:
            self._driver.status("cuModuleUnload", module)
        for memory in self._memory:
            self._driver.status("cuMemFree_v2", ctypes.c_uint64(memory.address))
        self._driver.status("cuStreamDestroy_v2", self._stream)
        self._driver.release()
