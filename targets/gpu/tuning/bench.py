"""Runs a piece of work with one tile: seconds, and what it computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mixplan.runtime.devices.gpu_backend import Backend, Ready
from mixplan.runtime.devices.gpu_program import Program, Sizes
from mixplan.runtime.devices.gpu_region import GpuRegion, stretches_of
from mixplan.runtime.dtypes import DType, f32_to_bf16
from mixplan.runtime.hal import PAGE_SIZE, Array, CacheSpec, Step
from mixplan.runtime.plan import Plan, Value, dim_value
from mixplan.targets.gpu.tuning.work import Work

__all__ = ["Clock", "Rows", "Sample", "Sampler"]

Clock = Callable[[Backend, Sequence[Ready]], float]
"""Seconds of some launches; `Backend.seconds`, or what a test has in its place."""


@dataclass(frozen=True)
class Rows:
    """The steps that tiles are timed in: rows of products by class; sequences and context of decoding, tokens of a prompt of attention."""

    decode: int = 1
    small: int = 64
    large: int = 512
    sequences: int = 8
    context: int = 1024
    prompt: int = 512


@dataclass(frozen=True)
class Sample:
    """seconds, and the outputs by value."""

    seconds: float
    outputs: Mapping[int, Array]

    def agrees(self, other: Sample) -> bool:
        """Whether both computed the same, but for the order of sums."""
        return all(_close(array, other.outputs[value]) for value, array in self.outputs.items())


def _close(a: Array, b: Array) -> bool:
    x, y = a.astype(np.float64), b.astype(np.float64)
    size = float(np.abs(x[np.isfinite(x)]).max(initial=0.0))
    return bool(np.isclose(x, y, rtol=0.0, atol=0.02 * size + 1e-6, equal_nan=True).all())


@dataclass
class Sampler:
    """make: a back end of the GPU, a new one for each sample, so that nothing is left behind."""

    make: Callable[[], Backend]
    clock: Clock
    rows: Rows = field(default_factory=Rows)
    _data: dict[int, _Noise] = field(default_factory=dict)

    def __call__(self, work: Work, program: Program, binaries: bytes) -> Sample:
        """Raises UnsupportedError where a kernel does not load, CapacityError where there is no room, InternalError where one fails."""
        step = self._step(work)
        noise = self._data.get(id(work.plan))
        if noise is None:
            self._data = {id(work.plan): (noise := _Noise(work.plan))}
        pages = -(-int(step.sequence_lengths.max()) // PAGE_SIZE)
        caches = CacheSpec(pages * (1 + int(step.sequences.max())), PAGE_SIZE, *step.block_tables.shape)
        backend = self.make()
        try:
            region = GpuRegion(noise, 0, caches, backend, program, memoryview(binaries))
            stretches = stretches_of(step, program.stretch)
            inputs = [noise.input(value, step) for value in work.plan.regions[0].inputs]
            region.upload_step(step.block_tables, step.positions, step.sequences, stretches, inputs)
            sizes = Sizes(step.tokens, step.rows, len(stretches))
            launches = region.launches(sizes, "decode" if work.kind == "attention decode" else "prefill")
            seconds = self.clock(backend, launches)
            return Sample(seconds, region.results(sizes))
        finally:
            backend.close()

    def _step(self, work: Work) -> Step:
        """Tokens of one sequence, or one token each of several."""
        most = work.plan.max_step_tokens
        if work.kind == "attention decode":
            count = min(self.rows.sequences, most)
            slots, positions = np.arange(count), np.full(count, self.rows.context - 1)
        else:
            count = min(self.rows.prompt if work.kind == "attention prefill" else getattr(self.rows, work.kind), most)
            slots, positions = np.zeros(count), np.arange(count)
        longest = int(positions.max()) + 1
        pages = -(-longest // PAGE_SIZE)
        tables = np.arange(pages * (int(slots.max()) + 1), dtype=np.int32).reshape(-1, pages)
        return Step(
            token_ids=np.zeros(count, np.int32),
            positions=positions.astype(np.int32),
            sequences=slots.astype(np.int32),
            logit_rows=np.arange(count, dtype=np.int32),
            sequence_lengths=np.full(count, longest, np.int32),
            block_tables=tables,
        )


class _Noise:
    """Random numbers in the place of a plan's constants and of a step's inputs: times depend on the bits that flip, if little."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._constants: dict[int, Array] = {}

    def constant(self, index: int) -> Array:
        """Codes are any, scales and other floats small."""
        if index not in self._constants:
            value = self.plan.values[index]
            shape = tuple(dim_value(dim, tokens=1, rows=1) for dim in value.shape)
            whole = np.full(shape, value.fill, value.dtype.numpy) if value.fill is not None else self._random(value, shape, 1e-2, 256)
            self._constants[index] = whole
        return self._constants[index]

    def input(self, index: int, step: Step) -> Array:
        """As a step has it."""
        value = self.plan.values[index]
        shape = tuple(dim_value(dim, tokens=step.tokens, rows=step.rows) for dim in value.shape)
        experts = [int(str(node.attrs["experts"])) for node in self.plan.nodes if index in node.inputs and "experts" in node.attrs]
        return self._random(value, shape, 1.0, min(experts, default=2))

    def _random(self, value: Value, shape: tuple[int, ...], scale: float, below: int) -> Array:
        rng = np.random.default_rng(len(shape))
        if value.dtype in (DType.f32, DType.f16, DType.bf16):
            numbers = (scale * rng.standard_normal(shape, np.float32)).astype(np.float32)
            return f32_to_bf16(numbers) if value.dtype is DType.bf16 else numbers.astype(value.dtype.numpy)
        low, high = (-127, 128) if value.dtype is DType.i8 else (0, 2 if value.dtype is DType.bool else below)
        return rng.integers(low, high, shape).astype(value.dtype.numpy)
