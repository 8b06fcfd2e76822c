"""The tokens of each sequence: what its keys and values can be computed from again, on another device."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixplan.runtime.hal import Step
from mixplan.runtime.kv_cache import PagedCache

__all__ = ["History"]


class History:
    """Token ids by slot and position. What stands behind a slot's length means nothing: it is written over, never cut."""

    def __init__(self, max_sequences: int) -> None:
        self._tokens = [array("i") for _ in range(max_sequences)]

    def write(self, slot: int, start: int, tokens: Iterable[int]) -> None:
        """Tokens at positions from `start`, which is at most where the slot's tokens end."""
        held = self._tokens[slot]
        del held[start:]
        held.extend(tokens)

    def restore(self, cache: PagedCache, most: int, run: Callable[[Step], object]) -> None:
        """Have `run` store all tokens in the cache once more, in steps of at most `most`. Where it fails no sequence has any tokens, since
        what there is of their keys and values is not known.
        """
        try:
            for step in self.steps(cache.filled(), cache.tables, most):
                run(step)
        except BaseException:
            for sequence in cache.sequences:
                cache.free(sequence)
            raise

    def steps(self, slots: Iterable[tuple[int, int]], tables: NDArray[np.int32], most: int) -> Iterator[Step]:
        """Steps of at most `most` tokens, none of whose logits are wanted, that store all tokens of these (slot, length) once more."""
        parts: list[tuple[int, int, int]] = []
        room = most
        for slot, length in slots:
            start = 0
            while start < length:
                stop = min(length, start + room)
                parts.append((slot, start, stop))
                room -= stop - start
                start = stop
                if not room:
                    yield self._step(parts, tables)
                    parts, room = [], most
        if parts:
            yield self._step(parts, tables)

    def _step(self, parts: Sequence[tuple[int, int, int]], tables: NDArray[np.int32]) -> Step:
        def joined(pieces: Iterable[Any]) -> NDArray[np.int32]:
            return np.concatenate([np.asarray(piece, np.int32) for piece in pieces])

        return Step(
            token_ids=joined(self._tokens[slot][start:stop] for slot, start, stop in parts),
            positions=joined(np.arange(start, stop) for _, start, stop in parts),
            sequences=joined(np.full(stop - start, slot) for slot, start, stop in parts),
            logit_rows=np.zeros(0, np.int32),
            sequence_lengths=joined(np.full(stop - start, stop) for _, start, stop in parts),
            block_tables=tables,
        )
