"""A region on a GPU: the arena, the KV pools, the weights, and the launches of each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mixplan.runtime.codebooks import CODEBOOKS
from mixplan.runtime.devices.gpu_backend import Backend, Pointer, Ready
from mixplan.runtime.devices.gpu_decode import GpuDecoder
from mixplan.runtime.devices.gpu_program import Argument, Program, Sizes
from mixplan.runtime.errors import InternalError, PlanError
from mixplan.runtime.hal import Array, CacheSpec, Fault, RegionDecoder, Step
from mixplan.runtime.kv_format import KvCodes
from mixplan.runtime.plan import AttentionLayer, Plan, Value, dim_value

__all__ = ["GpuRegion", "PlanData", "stretches_of"]

_GRAPHS = 64  # graphs of decode steps that are kept, one for each number of tokens
_PARAMETERS = 2  # scale and minimum of a token's head, f16


def stretches_of(step: Step, longest: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """i32 [S, 2]: first token and number of tokens of each stretch of at most `longest` tokens of one sequence, in order."""
    borders = np.flatnonzero(np.diff(step.sequences)) + 1
    out = []
    for start, stop in zip([0, *borders.tolist()], [*borders.tolist(), step.tokens], strict=True):
        out += [(first, min(longest, stop - first)) for first in range(start, stop, longest)]
    return np.array(out, np.int32).reshape(-1, 2)


class PlanData(Protocol):
    """What a region needs of a plan; see LoadedPlan."""

    plan: Plan

    def constant(self, index: int) -> Array: ...


class GpuRegion:
    """A loaded region; see LoadedRegion."""

    def __init__(
        self, plan: PlanData, region_index: int, caches: CacheSpec, backend: Backend, program: Program, binaries: memoryview
    ) -> None:
        region = plan.plan.regions[region_index]
        self.implementation = ""
        self.faults: tuple[Fault, ...] = ()
        self._plan = plan
        self._backend = backend
        self._program = program
        self._inputs = [(value, plan.plan.values[value], self._place(value)) for value in region.inputs]
        self._outputs = [(value, plan.plan.values[value], self._place(value)) for value in region.outputs]
        self._caches = caches
        self._arena = backend.allocate(max(program.arena, 1), "the arena")
        most = plan.plan.max_step_tokens
        self._step = {
            "tables": backend.allocate(4 * caches.max_sequences * caches.max_pages_per_sequence, "block tables"),
            **{name: backend.allocate(4 * most, name) for name in ("positions", "slots")},
            "stretches": backend.allocate(8 * most, "stretches"),
        }
        self._constants: dict[int, Pointer] = {}
        self._codebooks: dict[int, Pointer] = {}
        self._pools: dict[tuple[int, str], Pointer] = {}
        for launch in program.launches:
            for argument in launch.arguments:
                self._provide(argument)
        self._kernels = backend.load(program, binaries)
        self._graphs: dict[tuple[int, int], Ready | None] = {}
        self._graph_launches = 0
        self._sampler = next((launch for launch in program.launches if launch.mode == "sample"), None)
        if self._sampler is not None:
            self._allocate_sampler(caches.max_sequences)

    @property
    def isa(self) -> str:
        """The architecture and what drives it."""
        return self._backend.name

    def _place(self, value: int) -> int:
        offset = self._program.values.get(str(value))
        if offset is None:
            raise PlanError(f"The GPU kernels of this plan know no value {value}.", hint="Compile the plan again.")
        return offset

    def _provide(self, argument: Argument) -> None:
        """Bring what an argument names to the GPU, once."""
        index = argument.index
        if argument.kind == "constant" and index not in self._constants:
            self._constants[index] = self._uploaded(np.ascontiguousarray(self._plan.constant(index)), self._plan.plan.values[index].name)
        elif argument.kind == "codebook" and index not in self._codebooks:
            self._codebooks[index] = self._uploaded(CODEBOOKS[index], "a codebook")
        elif argument.kind == "kv" and (index, argument.name) not in self._pools:
            size = self._pool_bytes(self._plan.plan.attention[index], argument.name)
            self._pools[index, argument.name] = self._backend.allocate(size, f"a KV cache of {self._caches.pages} pages")

    def _uploaded(self, array: Array, what: str) -> Pointer:
        pointer = self._backend.allocate(max(array.nbytes, 1), what)
        self._backend.upload(pointer, 0, array)
        return pointer

    def _pool_bytes(self, layer: AttentionLayer, name: str) -> int:
        part, _, run = name.partition(".")
        if not run.isdecimal() or int(run) >= len(layer.runs):
            raise PlanError(f"The GPU kernels of this plan name a KV pool {name!r}, which is not there.", hint="Compile the plan again.")
        held, heads = layer.runs[int(run)]
        rows = self._caches.pages * self._caches.page_size * heads
        kind, dim = (held.keys, layer.k_dim) if part.startswith("keys") else (held.values, layer.v_dim)
        if not isinstance(kind, KvCodes):
            return rows * dim * kind.itemsize
        return rows * (2 * _PARAMETERS * kind.groups(dim) if part.endswith("parameters") else -(-dim * kind.bits // 8))

    def _allocate_sampler(self, rows: int) -> None:
        """The arrays of the kernel `sample`, for as many rows as there are sequences."""
        assert self._sampler is not None
        limit = self._program.kernels[self._sampler.kernel].constants.get("LIMIT", 0)
        if not isinstance(limit, int) or not 0 < limit <= 1 << 16:
            raise PlanError(f"The GPU kernels of this plan sample from {limit!r} logits.", hint="Compile the plan again.")
        for name, nbytes in (("settings", 32), ("ks", 4), ("scratch", 8 * limit), ("tokens", 4)):
            self._step[name] = self._backend.allocate(nbytes * rows, name)

    def decoder(self, tables: NDArray[np.int32]) -> RegionDecoder | None:
        """See DecodingRegion.decoder: there is one where the program draws tokens."""
        if self._sampler is None or len(self._outputs) != 1 or not all(value.kind == "input" for _, value, _ in self._inputs):
            return None
        return GpuDecoder(self, tables, [value.name for _, value, _ in self._inputs])

    def upload_step(self, tables: Array, positions: Array, slots: Array, stretches: Array, inputs: Sequence[Array]) -> None:
        """All that a step reads; inputs in the region's order."""
        for name, array in (("tables", tables), ("positions", positions), ("slots", slots), ("stretches", stretches)):
            self._backend.upload(self._step[name], 0, np.ascontiguousarray(array, np.int32))
        for (_, _, offset), array in zip(self._inputs, inputs, strict=True):
            self._backend.upload(self._arena, offset, array)

    def launch_decode(self, count: int) -> None:
        """The launches of a decode step of `count` tokens, each of which is a stretch."""
        self._launch(Sizes(count, count, count), count <= self._program.decode_tokens)

    def launch_sampler(self, settings: NDArray[np.float64], ks: NDArray[np.int32]) -> NDArray[np.int32]:
        """Tokens drawn from the logits of the step just made; -1 where the kernel leaves it to the host. settings [R, 4]: see `sample`."""
        assert self._sampler is not None
        sizes, kernel = Sizes(len(ks), len(ks), len(ks)), self._program.kernels[self._sampler.kernel]
        self._backend.upload(self._step["settings"], 0, settings)
        self._backend.upload(self._step["ks"], 0, ks)
        arguments = [self._argument(argument, sizes) for argument in self._sampler.arguments]
        self._backend.prepare(self._kernels[self._sampler.kernel], kernel, (len(ks), 1, 1), arguments)()
        tokens = np.empty(len(ks), np.int32)
        self._backend.download(self._step["tokens"], 0, tokens)
        return tokens

    def logits(self, count: int) -> NDArray[np.float32]:
        """f32 [count, V] of the step just made."""
        _, declared, offset = self._outputs[0]
        columns = declared.shape[-1]
        assert isinstance(columns, int)
        out = np.empty((count, columns), np.float32)
        self._backend.download(self._arena, offset, out)
        return out

    def run(self, step: Step, inputs: Mapping[int, Array]) -> dict[int, Array]:
        """See LoadedRegion.run."""
        stretches = stretches_of(step, self._program.stretch)
        given = []
        for value, declared, _ in self._inputs:
            array = np.asarray(inputs[value], order="C")
            if array.shape != _shape(step, declared) or array.dtype != declared.dtype.numpy:
                raise InternalError(f"Region input {declared.name!r} is {array.dtype} {array.shape}, declared {_shape(step, declared)}.")
            given.append(array)
        self.upload_step(step.block_tables, step.positions, step.sequences, stretches, given)
        sizes = Sizes(step.tokens, step.rows, len(stretches))
        decode = len(np.unique(step.sequences)) == step.tokens <= self._program.decode_tokens
        self._launch(sizes, decode)
        return self.results(sizes)

    def results(self, sizes: Sizes) -> dict[int, Array]:
        """The region's outputs after the launches of a step of these sizes."""
        made = {}
        for value, declared, offset in self._outputs:
            made[value] = np.empty(_shape(sizes, declared), declared.dtype.numpy)
            self._backend.download(self._arena, offset, made[value])
        return made

    def _launch(self, sizes: Sizes, decode: bool) -> None:
        if decode:
            self._decode(sizes)
        else:
            for ready in self.launches(sizes, "prefill"):
                ready()

    def _decode(self, sizes: Sizes) -> None:
        """A decode step: the second of its size is captured as a graph, which later ones replay."""
        key = (sizes.tokens, sizes.rows)
        graph = self._graphs.get(key)
        if graph is not None:
            self._graph_launches += 1
            graph()
            return
        launches = self.launches(sizes, "decode")
        if key in self._graphs and len(self._graphs) <= _GRAPHS:
            self._graphs[key] = graph = self._backend.graph(launches)
            if graph is not None:
                graph()
                return
        self._graphs.setdefault(key, None)
        for ready in launches:
            ready()

    def launches(self, sizes: Sizes, mode: str) -> list[Ready]:
        """The launches of a step of these sizes; mode: decode or prefill, see `Launch`."""
        made = []
        for launch in self._program.launches:
            if launch.mode not in ("", mode) or (launch.rows is not None and not launch.least <= launch.rows.at(sizes) <= launch.most):
                continue
            dims = [min(form.at(sizes) for form in forms) for forms in launch.grid]
            if min(dims) == 0:
                continue
            kernel = self._program.kernels[launch.kernel]
            grid = [*dims, 1, 1]
            arguments = [self._argument(argument, sizes) for argument in launch.arguments]
            made.append(self._backend.prepare(self._kernels[launch.kernel], kernel, (grid[0], grid[1], grid[2]), arguments))
        return made

    def _argument(self, argument: Argument, sizes: Sizes) -> tuple[Pointer, int] | int | None:
        match argument.kind:
            case "arena":
                return self._arena, argument.offset
            case "constant":
                return self._constants[argument.index], argument.offset
            case "codebook":
                return self._codebooks[argument.index], 0
            case "kv":
                return self._pools[argument.index, argument.name], 0
            case "step":
                return self._step[argument.name], 0
            case "max_pages":
                return self._caches.max_pages_per_sequence
            case "number" if argument.value is not None:
                return argument.value.at(sizes)
            case "none":
                return None
        raise PlanError(f"The GPU kernels of this plan have an argument of the kind {argument.kind!r}, which is not known.")

    def metrics(self) -> dict[str, float]:
        """Bytes set aside, and decode steps that replayed a graph."""
        return {
            "arena_bytes": float(self._arena.nbytes),
            "kv_bytes": float(sum(pool.nbytes for pool in self._pools.values())),
            "weight_bytes": float(sum(pointer.nbytes for pointer in self._constants.values())),
            "graph_steps": float(self._graph_launches),
        }

    def close(self) -> None:
        """Give the memory back."""
        self._backend.close()


def _shape(step: Step | Sizes, value: Value) -> tuple[int, ...]:
    return tuple(dim_value(dim, tokens=step.tokens, rows=step.rows) for dim in value.shape)
