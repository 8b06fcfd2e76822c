"""The CPU device: a step is one call into a region's shared library, on a pool of threads that the library keeps."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixplan.runtime.devices.cpu_abi import CreateArgs, StepArgs, attention_layers, region_constants
from mixplan.runtime.devices.cpu_decode import CpuDecoder
from mixplan.runtime.devices.cpu_info import allowed_cores, runnable_levels
from mixplan.runtime.devices.cpu_library import open_library
from mixplan.runtime.devices.cpu_memory import address, reserve
from mixplan.runtime.errors import CapacityError, InternalError, MixplanError, OptionError, RequestError
from mixplan.runtime.hal import PAGE_SIZE, Array, CacheSpec, DeviceOptions, Fault, LoadedRegion, RegionDecoder, Step, Support
from mixplan.runtime.plan import Value, dim_value
from mixplan.runtime.plan_io import LoadedPlan

__all__ = ["CpuDevice"]

_MAX_THREADS = 1024
# Outputs up to this many bytes lie in memory that is kept; larger ones (logits of a long prompt) are given back after the step.
_KEPT_OUTPUT = 16 << 20


class CpuDevice:
    """Runs regions natively. `threads` defaults to the cores that this process may use, `isa` to the best that the CPU has."""

    name = "cpu"

    def __init__(self, options: DeviceOptions) -> None:
        threads = allowed_cores() if options.threads is None else options.threads
        if not 1 <= threads <= _MAX_THREADS:
            raise OptionError(f"threads is {threads}; allowed are 1 to {_MAX_THREADS}.")
        self._threads = threads
        self._isa = options.isa
        # The variable is for programs that load plans themselves.
        self._profile = options.profile or os.environ.get("MIXPLAN_PROFILE") == "1"

    def supported(self) -> Support:
        """On Linux, on a CPU that some level is built for."""
        if not sys.platform.startswith("linux"):
            return Support(False, f"the CPU device runs on Linux, not on {sys.platform}")
        levels = runnable_levels()
        return Support(True, f"runs {levels[0]}") if levels else Support(False, "there are no kernels for this CPU's architecture")

    def load(self, plan: LoadedPlan, region_index: int, caches: CacheSpec) -> LoadedRegion:
        """See Device.load."""
        if caches.page_size != PAGE_SIZE:
            raise InternalError(f"The CPU kernels are built for pages of {PAGE_SIZE} tokens, not {caches.page_size}.")
        return _CpuRegion(plan, region_index, caches, self._threads, self._isa, self._profile)


def _pointers(addresses: Sequence[int]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * max(len(addresses), 1))(*addresses)


class _CpuRegion:
    def __init__(self, plan: LoadedPlan, region_index: int, caches: CacheSpec, threads: int, isa: str | None, profile: bool) -> None:
        self._plan = plan
        self._profiled = profile
        region = plan.plan.regions[region_index]
        self._inputs = [(value, plan.plan.values[value]) for value in region.inputs]
        self._outputs = [(value, plan.plan.values[value]) for value in region.outputs]
        self._handle: int | None = None
        self._process = os.getpid()
        self._nanoseconds = 0
        self._decoder: CpuDecoder | None = None
        self._library = open_library(plan, region, isa)
        try:
            self._create(region_index, caches, threads)
        except BaseException:
            self._library.close()
            raise

    def _create(self, region_index: int, caches: CacheSpec, threads: int) -> None:
        region, library = self._plan.plan.regions[region_index], self._library
        functions = library.functions
        self._threads = threads
        arena = reserve(library.arena_bytes, "the arena")
        scratch = reserve(functions.mixplan_scratch_bytes(threads), "scratch")
        layers = attention_layers(self._plan.plan, region)
        # A page's layers lie side by side: layer by layer, a short context would touch a huge page in each of them.
        sizes = [functions.mixplan_kv_page_bytes(k) for k in range(len(layers))]
        stride = sum(sizes)
        cache = reserve(stride * caches.pages, f"a KV cache of {caches.pages} pages")
        kv = [address(cache) + sum(sizes[:k]) for k in range(len(layers))]
        # Kept alive, since the library holds their addresses.
        self._memory = [arena, scratch, cache]
        self._constants = [self._plan.constant(value, complete=False) for value in region_constants(self._plan.plan, region)]
        arguments = CreateArgs(
            threads,
            _pointers([array.ctypes.data for array in self._constants]),
            address(arena),
            address(scratch),
            _pointers(kv),
            stride,
            caches.pages,
            caches.max_pages_per_sequence,
            int(self._profiled),
        )
        self._kept = reserve(sum(self._kept_size(value) for _, value in self._outputs), "outputs")
        self._handle = functions.mixplan_create(ctypes.byref(arguments))
        if not self._handle:
            raise CapacityError(f"{threads} threads cannot be started.", hint="Load the plan with fewer threads.")

    def _kept_size(self, value: Value) -> int:
        most = self._plan.plan.max_step_tokens
        size = prod(dim_value(dim, tokens=most, rows=most) for dim in value.shape) * value.dtype.itemsize
        return -(-min(size, _KEPT_OUTPUT) // 64) * 64

    @property
    def isa(self) -> str:
        """The level in use."""
        return self._library.level

    @property
    def origin(self) -> str:
        """Where its native code came from, for the placement summary."""
        return self._library.origin

    @property
    def implementation(self) -> str:
        """Which kernels they are."""
        return self._library.name

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Kernels that could not be loaded before those in use."""
        return self._library.faults

    def run(self, step: Step, inputs: Mapping[int, Array]) -> dict[int, Array]:
        """See LoadedRegion.run."""
        self._check_usable()
        given = [self._input(step, index, value, inputs) for index, value in self._inputs]
        made, offset = [], 0
        for _, value in self._outputs:
            made.append(self._output(step, value, offset))
            offset += self._kept_size(value)
        arrays = [np.ascontiguousarray(a, np.int32) for a in (step.positions, step.sequences, step.sequence_lengths, step.block_tables)]
        arguments = StepArgs(
            step.tokens,
            step.rows,
            *(array.ctypes.data for array in arrays),
            _pointers([array.ctypes.data for array in given]),
            _pointers([array.ctypes.data for array in made]),
        )
        self._call(self._library.functions.mixplan_step, ctypes.byref(arguments))
        self._nanoseconds += arguments.nanoseconds
        return {index: array for (index, _), array in zip(self._outputs, made, strict=True)}

    def decoder(self, tables: NDArray[np.int32]) -> RegionDecoder | None:
        """See DecodingRegion.decoder."""
        names = [value.name for _, value in self._inputs]
        if self._handle is None or not self._library.logits or len(self._outputs) != 1 or not CpuDecoder.suits(names):
            return None
        step, decode = self._library.functions.mixplan_step, self._library.functions.mixplan_decode
        self._decoder = CpuDecoder(partial(self._call, step), partial(self._call, decode), names, tables, self._library.logits)
        return self._decoder

    def _call(self, function: Callable[[int | None, Any], int], arguments: Any) -> None:
        self._check_usable()
        status = function(self._handle, arguments)
        if status:
            raise self._failed(status)

    def _check_usable(self) -> None:
        if self._handle is None:
            raise InternalError("The region is closed.")
        if self._process != os.getpid():
            raise RequestError(
                "The plan was loaded before this process was forked, and its threads stayed behind.", hint="Load it in this process."
            )

    def _failed(self, status: int) -> MixplanError:
        """What a step's status other than 0 means."""
        if status < 0:
            return InternalError(f"The kernels refused the step: it has more than {self._library.max_tokens} tokens or rows.")
        node = self._plan.plan.nodes[status - 1]
        return RequestError(f"Op {node.op} (node {node.name!r}): an index is out of range.")

    def _shape(self, step: Step, value: Value) -> tuple[int, ...]:
        return tuple(dim_value(dim, tokens=step.tokens, rows=step.rows) for dim in value.shape)

    def _input(self, step: Step, index: int, value: Value, inputs: Mapping[int, Array]) -> Array:
        array = np.asarray(inputs[index], order="C")
        if array.shape != self._shape(step, value) or array.dtype != value.dtype.numpy:
            wanted = f"{value.dtype.value} {self._shape(step, value)}"
            raise InternalError(f"Region input {value.name!r} is {array.dtype} {array.shape}, declared {wanted}.")
        return array

    def _output(self, step: Step, value: Value, offset: int) -> Array:
        shape = self._shape(step, value)
        count = prod(shape)
        if count == 0 or count * value.dtype.itemsize > _KEPT_OUTPUT:
            return np.empty(shape, value.dtype.numpy)
        return np.frombuffer(self._kept, value.dtype.numpy, count=count, offset=offset).reshape(shape)

    def metrics(self) -> dict[str, float]:
        """Bytes set aside (the system gives memory only for what is touched), threads, and the time spent in native code."""
        sizes = dict(zip(("arena_bytes", "scratch_bytes", "kv_bytes"), map(float, map(len, self._memory)), strict=False))
        native = self._nanoseconds + (self._decoder.nanoseconds if self._decoder is not None else 0)
        return {**sizes, "threads": float(self._threads), "native_seconds": native / 1e9}

    def op_seconds(self) -> list[tuple[int, float]]:
        """See ProfiledRegion.op_seconds."""
        if self._handle is None or not self._profiled:
            return []
        nanoseconds, nodes = (ctypes.c_int64 * self._library.ops)(), (ctypes.c_int32 * self._library.ops)()
        self._library.functions.mixplan_profile(self._handle, nanoseconds, nodes)
        return [(node - 1, ns / 1e9) for ns, node in zip(nanoseconds, nodes, strict=True)]

    def profile(self) -> list[tuple[str, str, float]]:
        """(op, node's name, seconds so far) of every op; empty where no profile was asked for."""
        nodes = self._plan.plan.nodes
        return [(nodes[index].op, nodes[index].name, seconds) for index, seconds in self.op_seconds()]

    def close(self) -> None:
        """Stop the threads, unload the library; the memory goes with the last array that shows it."""
        handle, self._handle = self._handle, None
        # In a forked child there are no threads to stop, and waiting for them would never end.
        if handle is not None and self._process == os.getpid():
            self._library.functions.mixplan_destroy(handle)
            self._library.close()
            self._memory.clear()

    def __del__(self) -> None:
        self.close()
