"""The back end on a GPU's own driver, NVIDIA's or AMD's: binaries, one stream, one graph for each size of a decode step."""

from __future__ import annotations

import contextlib
import ctypes
import statistics
from collections.abc import Sequence
from functools import partial
from typing import Any

from mixplan.runtime.devices.gpu_backend import Ready
from mixplan.runtime.devices.gpu_driver import Driver
from mixplan.runtime.devices.gpu_program import Kernel, Program
from mixplan.runtime.errors import CapacityError, InternalError, UnsupportedError
from mixplan.runtime.hal import Array

__all__ = ["DriverBackend"]

_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING, hipStreamNonBlocking
_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, hipStreamCaptureModeThreadLocal

_ROUNDS = 15
_CACHES = 512 << 20  # bytes, more than the caches of any GPU


class _Memory:
    def __init__(self, address: int, nbytes: int) -> None:
        self.address = address
        self.nbytes = nbytes


class DriverBackend:
    """See Backend."""

    def __init__(self, driver: Driver) -> None:
        if not driver.arch:
            raise UnsupportedError(
                f"{driver.describe()} is not one of those that kernels are built for (8.x, 9.0, 10.0 and gfx942).",
                hint="Load with isa='jit'.",
            )
        self._driver = driver
        self.arch = driver.arch
        self.name = f"{driver.arch} ({driver.gpu})"
        self._memory: list[_Memory] = []
        self._modules: list[int] = []
        self._images: list[bytes] = []  # HIP does not promise a copy
        self._graphs: list[int] = []
        self._other: _Memory | None = None
        self._graphs_fit = True
        self._closed = False
        self._context = driver.retain()
        try:
            self._current()
            self._stream = self._made("stream", _NON_BLOCKING)
        except BaseException:
            driver.release()
            raise

    def _current(self) -> None:
        self._driver.bind(self._context)

    def _made(self, step: str, *arguments: Any) -> int:
        """The handle that a step makes."""
        handle = ctypes.c_void_p()
        self._driver.call(step, ctypes.byref(handle), *arguments)
        return handle.value or 0

    def allocate(self, nbytes: int, what: str) -> _Memory:
        """See Backend.allocate."""
        self._current()
        address = ctypes.c_uint64()
        size = max(nbytes, 1)
        try:
            self._driver.call("allocate", ctypes.byref(address), size)
        except MemoryError:
            raise CapacityError(f"The GPU has no {nbytes} bytes for {what}.", hint="Load with a smaller kv_tokens.") from None
        memory = _Memory(address.value, nbytes)
        self._memory.append(memory)
        self._driver.call("fill", memory.address, 0, size, self._stream)
        return memory

    def upload(self, to: Any, offset: int, array: Array) -> None:
        """See Backend.upload. The driver has read a pageable array when the call returns."""
        if offset < 0 or offset + array.nbytes > to.nbytes:
            raise InternalError(f"An upload of {array.nbytes} bytes at {offset} does not fit into {to.nbytes}.")
        if array.nbytes:
            self._current()
            self._driver.call("upload", to.address + offset, array.ctypes.data, array.nbytes, self._stream)

    def download(self, source: Any, offset: int, into: Array) -> None:
        """See Backend.download."""
        if offset < 0 or offset + into.nbytes > source.nbytes:
            raise InternalError(f"A download of {into.nbytes} bytes at {offset} does not fit into {source.nbytes}.")
        self._current()
        if into.nbytes:
            self._driver.call("download", into.ctypes.data, source.address + offset, into.nbytes, self._stream)
        self._driver.call("synchronize", self._stream)

    def load(self, program: Program, binaries: memoryview) -> list[Any]:
        """A function of each kernel's binary."""
        self._current()
        functions = []
        for kernel in program.kernels:
            self._images.append(bytes(binaries[kernel.offset : kernel.offset + kernel.nbytes]))
            try:
                module = self._made("load", self._images[-1])
                self._modules.append(module)
                function = self._made("function", module, kernel.entry.encode())
                if kernel.shared > self._driver.api.ordinary_shared and "set" in self._driver.api.functions:
                    self._driver.call("set", function, _DYNAMIC_SHARED, kernel.shared)
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

    def _launch(self, function: int, grid: tuple[int, int, int], threads: int, shared: int, parameters: Any, values: list[Any]) -> None:
        """values: what the parameters point to, kept alive."""
        self._driver.call("launch", function, *grid, threads, 1, 1, shared, self._stream, parameters, None)

    def graph(self, launches: Sequence[Ready]) -> Ready | None:
        """See Backend.graph. None also where the driver has no memory for one: then none is asked for any more."""
        if not self._graphs_fit:
            return None
        self._current()
        self._driver.call("capture", self._stream, _THREAD_LOCAL)
        try:
            for launch in launches:
                launch()
        except BaseException:
            # A stream left capturing takes nothing else.
            left = ctypes.c_void_p()
            if not self._driver.status("end_capture", self._stream, ctypes.byref(left)) and left.value:
                self._driver.status("end_graph", left.value)
            raise
        captured = self._captured()
        try:
            executable = self._made("instantiate", captured, 0)
        except MemoryError:
            self._graphs_fit = False
            return None
        finally:
            self._driver.status("end_graph", captured)
        self._graphs.append(executable)
        return partial(self._replay, executable)

    def _captured(self) -> int:
        """The graph of what was launched since the capture began."""
        graph = ctypes.c_void_p()
        self._driver.call("end_capture", self._stream, ctypes.byref(graph))
        return graph.value or 0

    def _replay(self, executable: int) -> None:
        self._current()
        self._driver.call("replay", executable, self._stream)

    def seconds(self, launches: Sequence[Ready]) -> float:
        """See Backend.seconds. Before each round other memory is written, so that weights do not come from the cache; launches are one
        graph where they can be, so that a busy host makes no difference."""
        self._current()
        for launch in launches:  # the first time the driver loads the code, which it must not do in a capture
            launch()
        graph = self.graph(launches)
        rounds = launches if graph is None else [graph]
        first, last = self._made("event", 0), self._made("event", 0)
        try:
            if self._other is None:
                self._other = self._room()
            times = [self._round(rounds, first, last) for _ in range(_ROUNDS)]
        finally:
            for event in (first, last):
                self._driver.status("end_event", event)
        return float(statistics.median(times))

    def _room(self) -> _Memory:
        """As large a piece of memory as there is, up to more than any cache."""
        for size in (_CACHES, _CACHES >> 3, _CACHES >> 6):
            with contextlib.suppress(CapacityError):
                return self.allocate(size, "what is written between rounds")
        return self.allocate(1, "what is written between rounds")

    def _round(self, launches: Sequence[Ready], first: int, last: int) -> float:
        assert self._other is not None
        self._driver.call("fill", self._other.address, 0, max(self._other.nbytes, 1), self._stream)
        self._driver.call("record", first, self._stream)
        for launch in launches:
            launch()
        self._driver.call("record", last, self._stream)
        self._driver.call("await", last)
        milliseconds = ctypes.c_float()
        self._driver.call("elapsed", ctypes.byref(milliseconds), first, last)
        return milliseconds.value / 1e3

    def close(self) -> None:
        """See Backend.close."""
        if self._closed:
            return
        self._closed = True
        self._current()
        self._driver.status("synchronize", self._stream)
        for graph in self._graphs:
            self._driver.status("end_executable", graph)
        for module in self._modules:
            self._driver.status("unload", module)
        for memory in self._memory:
            self._driver.status("free", memory.address)
        self._driver.status("end_stream", self._stream)
        self._driver.release()
