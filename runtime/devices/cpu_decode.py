"""Decode steps of the CPU device: one token of each of some sequences, with all arguments in place beforehand.

A step of a small model takes a millisecond or two and sweeps the caches, so that what Python does around it costs ten times what it does
in a loop of its own. Here that is a handful of stores and one call, and greedy decoding makes several steps in one call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mixplan.runtime.devices.cpu_abi import DecodeArgs, DrawArgs, StepArgs
from mixplan.runtime.devices.cpu_memory import address, reserve
from mixplan.runtime.hal import MOST_STEPS
from mixplan.runtime.logit_rows import MAXIMA_BLOCK, LogitRows
from mixplan.runtime.sampling import Draw, SamplingParams

__all__ = ["CpuDecoder"]

Call: TypeAlias = Callable[[Any], None]

_STEP_INPUTS = ("token_ids", "position_ids", "sequence_lengths", "logit_rows")


class CpuDecoder:
    """Runs decode steps of a region that is a whole plan. Not safe for use by several threads at once."""

    def __init__(self, step: Call, decode: Call, inputs: Sequence[str], tables: NDArray[np.int32], columns: int) -> None:
        """`step`, `decode`: the library's functions, which raise where a step fails. `inputs`: names of the region's inputs."""
        self._step, self._decode = step, decode
        self._names = tuple(inputs)
        # The library reads the block tables where the runtime keeps them.
        self._tables = tables
        self._columns = columns
        self._blocks = -(-columns // MAXIMA_BLOCK)
        self._room = 0
        self._stops: tuple[int, ...] | None = None
        # ctypes' arrays of int64 and int32, by the name of what they hold.
        self._ids: Any
        self._wide_positions: Any
        self._wide_lengths: Any
        self._positions: Any
        self._slots: Any
        self._lengths: Any
        self._uniforms: Any
        self.nanoseconds = 0
        """Time in the library so far, as it counted it."""

    @staticmethod
    def suits(inputs: Sequence[str]) -> bool:
        """Whether a region's inputs are those of a step."""
        return all(name in _STEP_INPUTS for name in inputs)

    def run(self, tokens: Sequence[int], positions: Sequence[int], slots: Sequence[int]) -> LogitRows:
        """See hal.RegionDecoder."""
        count = self._begin(tokens, positions, slots)
        self._step(self._step_reference)
        self.nanoseconds += self._arguments.step.nanoseconds
        return LogitRows(self._rows[:count], self._best[:count], self._maxima[:count])

    def run_steps(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        slots: Sequence[int],
        draws: Sequence[Draw] | None,
        steps: int,
        stops: tuple[int, ...],
        seconds: float,
    ) -> tuple[list[int], LogitRows]:
        """See hal.RegionDecoder."""
        count = self._begin(tokens, positions, slots)
        if stops != self._stops:
            self._stops = stops
            self._stop_array = (ctypes.c_int32 * len(stops))(*stops)
        arguments = self._arguments
        arguments.stops, arguments.stop_count = ctypes.addressof(self._stop_array), len(stops)
        steps = min(steps, MOST_STEPS)
        arguments.steps, arguments.budget = steps, int(seconds * 1e9)
        arguments.draws = self._draw_arguments(draws, steps) if draws else None
        self._decode(self._decode_reference)
        self.nanoseconds += arguments.step.nanoseconds
        return self._found[: arguments.done * count], LogitRows(self._rows[:count], self._best[:count], self._maxima[:count])

    def _draw_arguments(self, draws: Sequence[Draw], steps: int) -> int:
        """Where the library finds them."""
        for row, draw in enumerate(draws):
            at = row * MOST_STEPS
            self._uniforms[at : at + steps] = draw.uniforms[:steps]
            if self._drawing[row] is not draw.params:
                params = self._drawing[row] = draw.params
                given = self._draws[row]
                given.temperature, given.top_p, given.min_p = params.temperature, params.top_p, params.min_p
                given.top_k = min(params.top_k, self._columns)
        return ctypes.addressof(self._draws)

    def _begin(self, tokens: Sequence[int], positions: Sequence[int], slots: Sequence[int]) -> int:
        count = len(tokens)
        if count > self._room:
            self._make_room(count)
        lengths = [position + 1 for position in positions]
        self._ids[:count], self._wide_positions[:count], self._wide_lengths[:count] = tokens, positions, lengths
        self._positions[:count], self._slots[:count], self._lengths[:count] = positions, slots, lengths
        step = self._arguments.step
        step.tokens = step.rows = count
        return count

    def _make_room(self, count: int) -> None:
        """Arguments for up to `count` tokens, or the next power of two."""
        room = 1 << (count - 1).bit_length()
        wide, narrow = ctypes.c_int64 * room, ctypes.c_int32 * room
        self._ids, self._wide_positions, self._wide_lengths, self._numbers = wide(), wide(), wide(), wide(*range(room))
        self._positions, self._slots, self._lengths, self._best = narrow(), narrow(), narrow(), narrow()
        self._found = (ctypes.c_int32 * (room * MOST_STEPS))()
        self._draws, self._uniforms = (DrawArgs * room)(), (ctypes.c_double * (room * MOST_STEPS))()
        self._drawing: list[SamplingParams | None] = [None] * room
        for row, given in enumerate(self._draws):
            given.uniforms = ctypes.addressof(self._uniforms) + row * MOST_STEPS * 8
        self._scratch = reserve(self._columns * 8, "candidates")
        given = dict(zip(_STEP_INPUTS, (self._ids, self._wide_positions, self._wide_lengths, self._numbers), strict=True))
        memory = reserve(room * self._columns * 4, "logits")
        self._rows = np.frombuffer(memory, np.float32, count=room * self._columns).reshape(room, self._columns)
        self._maxima = np.empty((room, self._blocks), np.float32)
        self._inputs = (ctypes.c_void_p * max(len(self._names), 1))(*(ctypes.addressof(given[name]) for name in self._names))
        self._outputs = (ctypes.c_void_p * 1)(address(memory))
        at = ctypes.addressof
        step = StepArgs(
            room,
            room,
            at(self._positions),
            at(self._slots),
            at(self._lengths),
            self._tables.ctypes.data,
            self._inputs,
            self._outputs,
            at(self._best),
            self._maxima.ctypes.data,
        )
        # The structures keep the arrays of pointers alive, the attributes the rest.
        self._arguments = DecodeArgs(
            step, at(self._ids), at(self._wide_positions), at(self._wide_lengths), at(self._positions), at(self._lengths)
        )
        self._arguments.found, self._arguments.scratch = at(self._found), address(self._scratch)
        self._decode_reference = ctypes.byref(self._arguments)
        self._step_reference = ctypes.byref(self._arguments.step)
        self._room = room
