"""Decode steps: one more token for each of some sequences. The same as `Model.step`, without what an arbitrary step needs."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from time import perf_counter_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixplan.runtime.errors import CapacityError, RequestError
from mixplan.runtime.executor import Executor
from mixplan.runtime.hal import MOST_STEPS
from mixplan.runtime.history import History
from mixplan.runtime.kv_cache import PagedCache
from mixplan.runtime.logit_rows import LogitRows, finite_best
from mixplan.runtime.plan import Model
from mixplan.runtime.sampling import Draw

__all__ = ["Decoder", "Moved", "whole_numbers"]


class Moved(Exception):  # noqa: N818 - it is no error: the caller tries once more
    """The region went to another device in the middle of a step, which has changed nothing."""


class Decoder:
    """Appends tokens to sequences. Not safe for use by several threads at once: the model holds a lock."""

    def __init__(self, model: Model, executor: Executor, cache: PagedCache, history: History, max_step_tokens: int) -> None:
        self._vocabulary = model.vocab_size
        self._context = model.context_length
        self._cache = cache
        self._history = history
        self._most = max_step_tokens
        self._executor = executor
        self._moves = executor.moves
        self._device = executor.decoder(cache.tables)

    @property
    def short(self) -> bool:
        """Whether the plan's device has a shorter way for these steps."""
        if self._moves != self._executor.moves:
            self._moves, self._device = self._executor.moves, self._executor.decoder(self._cache.tables)
        return self._device is not None

    def positions(self, token_ids: Sequence[int], sequences: Sequence[int]) -> list[int]:
        """Where the tokens go. RequestError and CapacityError for what `Model.step` refuses."""
        if len(token_ids) != len(sequences) or not len(token_ids):
            raise RequestError(f"A decode step needs one token for each sequence; got {len(token_ids)} and {len(sequences)}.")
        if len(token_ids) > self._most:
            raise CapacityError(
                f"The step has {len(token_ids)} tokens; this model was loaded with max_step_tokens={self._most}.",
                hint="Split it into several steps.",
            )
        for at, token in enumerate(token_ids):
            if not 0 <= token < self._vocabulary:
                raise RequestError(
                    f"The step has token id {token} (at index {at}); allowed are 0 to {self._vocabulary - 1}, "
                    f"since vocab_size is {self._vocabulary}."
                )
        if len(sequences) > 1 and len(set(sequences)) < len(sequences):
            raise RequestError(f"A decode step takes each sequence once; got {list(sequences)}.")
        length = self._cache.length
        positions = [length(sequence) for sequence in sequences]
        for position, sequence in zip(positions, sequences, strict=True):
            if position >= self._context:
                raise RequestError(f"Sequence {sequence} has {position} tokens, and the model's context_length is {self._context}.")
        return positions

    def run(self, token_ids: Sequence[int], sequences: Sequence[int], positions: Sequence[int]) -> LogitRows:
        """One step; the sequences have grown when it returns, and are as before where it raises. Only where there is a short way.

        Moved where that has gone.
        """
        assert self._device is not None
        started = perf_counter_ns()
        slots = self._cache.extend(sequences)
        try:
            rows = self._device.run(token_ids, positions, slots)
        except BaseException as error:
            self.undo(sequences, positions)
            self._move(error)
            raise
        self._cache.extended(slots)
        for slot, position, token in zip(slots, positions, token_ids, strict=True):
            self._history.write(slot, position, (token,))
        self._executor.count(perf_counter_ns() - started, 1)
        return rows

    def run_steps(
        self,
        token_ids: Sequence[int],
        sequences: Sequence[int],
        positions: Sequence[int],
        draws: Sequence[Draw] | None,
        steps: int,
        stops: tuple[int, ...],
        seconds: float,
    ) -> list[int]:
        """Several steps (see RegionDecoder.run_steps), as many as the sequences' pages hold; the tokens found, step after step."""
        assert self._device is not None
        cache = self._cache
        started = perf_counter_ns()
        slots = cache.extend(sequences)
        steps = min(steps, MOST_STEPS, cache.room(slots), self._context - max(positions))
        try:
            found, rows = self._device.run_steps(token_ids, positions, slots, draws, steps, stops, seconds)
            if min(found) < 0:
                finite_best(rows)
        except BaseException as error:
            self.undo(sequences, positions)
            self._move(error)
            raise
        done = len(found) // len(slots)
        cache.extended(slots, done)
        # Step by step; those found in the last one are not appended yet.
        appended = [*token_ids, *found[: -len(slots)]]
        for row, (slot, position) in enumerate(zip(slots, positions, strict=True)):
            self._history.write(slot, position, appended[row :: len(slots)])
        self._executor.count(perf_counter_ns() - started, done)
        return found

    def undo(self, sequences: Sequence[int], positions: Sequence[int]) -> None:
        """Each sequence has what it had before `positions`."""
        for sequence, position in zip(sequences, positions, strict=True):
            self._cache.truncate(sequence, min(position, self._cache.length(sequence)))

    def _move(self, error: BaseException) -> None:
        """Moved, where the device is out of memory and another took the region over."""
        if isinstance(error, (CapacityError, MemoryError)):
            self._executor.move(0, error)
            raise Moved from error


def whole_numbers(given: Sequence[int] | NDArray[np.integer[Any]], name: str) -> Sequence[int]:
    """A list of Python's own integers."""
    try:
        return [index(one) for one in given]
    except TypeError:
        raise RequestError(f"{name} must be a flat list of whole numbers; got {given!r}.") from None
