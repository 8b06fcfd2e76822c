"""Page accounting of the KV cache: which page holds which positions of which sequence. The storage itself is each device's.

Every page holds PAGE_SIZE tokens of one sequence, in all attention layers. A sequence that was never seen is one of length 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from mixplan.runtime.errors import CapacityError, RequestError
from mixplan.runtime.hal import CacheSpec

__all__ = ["PagedCache", "Span"]


class Span(msgspec.Struct, frozen=True):
    """Positions [start, stop) of one sequence, to be written in a step."""

    sequence: int
    start: int
    stop: int


class PagedCache:
    """Slots, lengths and block tables. Not safe for use by several threads at once: the model holds a lock."""

    def __init__(self, spec: CacheSpec) -> None:
        self.spec = spec
        self.tables: NDArray[np.int32] = np.full((spec.max_sequences, spec.max_pages_per_sequence), -1, np.int32)
        """[max_sequences, max_pages_per_sequence], -1 where there is no page."""
        self._slots: dict[int, int] = {}
        self._lengths = [0] * spec.max_sequences
        self._held = [0] * spec.max_sequences
        self._free_slots = list(range(spec.max_sequences - 1, -1, -1))
        # Pages never used yet are [fresh, pages): no list of them, so that a large cache costs nothing until it is used.
        self._fresh = 0
        self._returned: list[int] = []

    @property
    def pages_used(self) -> int:
        """Pages that hold tokens now."""
        return self._fresh - len(self._returned)

    @property
    def pages_free(self) -> int:
        """Pages that can still be given out."""
        return self.spec.pages - self.pages_used

    @property
    def sequences(self) -> tuple[int, ...]:
        """The sequences that hold a slot, in order of arrival."""
        return tuple(self._slots)

    def filled(self) -> list[tuple[int, int]]:
        """(slot, tokens stored) of each sequence, in order of arrival."""
        return [(slot, self._lengths[slot]) for slot in self._slots.values()]

    def length(self, sequence: int) -> int:
        """Tokens stored of `sequence`."""
        slot = self._slots.get(sequence)
        return 0 if slot is None else self._lengths[slot]

    def reserve(self, spans: Sequence[Span]) -> list[int]:
        """Give each span's sequence a slot and pages up to `stop`, and cut it to `start`; returns the slots. All spans or none.

        Sequences must differ. RequestError where a span leaves a gap after its sequence's tokens; CapacityError where slots, pages or the
        length of a block table run out, and then nothing has changed. Lengths grow only at `commit`.
        """
        size = self.spec.page_size
        needed, new = 0, 0
        for span in spans:
            slot = self._slots.get(span.sequence)
            length, held = (0, 0) if slot is None else (self._lengths[slot], self._held[slot])
            if not 0 <= span.start <= length:
                raise RequestError(
                    f"Sequence {span.sequence} has {length} tokens; its next position is {length} or an earlier one, not {span.start}."
                )
            pages = -(-span.stop // size)
            if pages > self.spec.max_pages_per_sequence:
                raise CapacityError(
                    f"Sequence {span.sequence} would have {span.stop} tokens; this model holds at most "
                    f"{self.spec.max_pages_per_sequence * size} in one sequence.",
                    hint="Load it with a larger kv_tokens, up to the model's context length.",
                )
            needed += pages - held
            new += slot is None
        if new > len(self._free_slots):
            raise CapacityError(
                f"The step brings {new} new sequences; {len(self._free_slots)} of max_sequences={self.spec.max_sequences} are free.",
                hint="Free finished sequences, or load with a larger max_sequences.",
            )
        if needed > self.pages_free:
            raise CapacityError(
                f"The step needs {needed} more KV pages of {size} tokens; {self.pages_free} of {self.spec.pages} are free.",
                hint="Free finished sequences, or load with a larger kv_tokens.",
            )
        # First all that shrink, so that those that grow find the pages that were counted on.
        for span in spans:
            self._cut(span)
        return [self._grow(span) for span in spans]

    def extend(self, sequences: Sequence[int]) -> list[int]:
        """As `reserve`, for one more token of each of these sequences; returns the slots. Lengths grow at `extended`."""
        size, lengths, held = self.spec.page_size, self._lengths, self._held
        slots = [self._slots.get(sequence, -1) for sequence in sequences]
        for slot in slots:
            if slot < 0 or lengths[slot] >= held[slot] * size:
                # A new sequence, or one that needs a page.
                return self.reserve([Span(sequence, self.length(sequence), self.length(sequence) + 1) for sequence in sequences])
        return slots

    def room(self, slots: Iterable[int]) -> int:
        """How many more tokens fit into the last pages of each of these slots."""
        return min(self._held[slot] * self.spec.page_size - self._lengths[slot] for slot in slots)

    def extended(self, slots: Iterable[int], count: int = 1) -> None:
        """The tokens that `extend` made room for are written: `count` in each slot, within its pages."""
        for slot in slots:
            self._lengths[slot] += count

    def commit(self, spans: Iterable[Span]) -> None:
        """The spans are written: their sequences now end at `stop`."""
        for span in spans:
            self._lengths[self._slots[span.sequence]] = span.stop

    def rollback(self, spans: Iterable[Span]) -> None:
        """The step failed: sequences keep what they had before `start`, new ones go."""
        for span in spans:
            self.truncate(span.sequence, min(span.start, self.length(span.sequence)))

    def truncate(self, sequence: int, length: int) -> None:
        """Forget the tokens from position `length` on; a sequence cut to 0 gives its slot back. RequestError where it is shorter."""
        slot = self._slots.get(sequence)
        if not 0 <= length <= self.length(sequence):
            raise RequestError(f"Sequence {sequence} has {self.length(sequence)} tokens; it cannot be cut to {length}.")
        if slot is None:
            return
        self._drop_pages(slot, -(-length // self.spec.page_size))
        self._lengths[slot] = length
        if length == 0:
            del self._slots[sequence]
            self._free_slots.append(slot)

    def free(self, sequence: int) -> None:
        """Forget a sequence. One that was never seen is empty already."""
        self.truncate(sequence, 0)

    def _cut(self, span: Span) -> None:
        slot = self._slots.get(span.sequence)
        if slot is None:
            slot = self._slots[span.sequence] = self._free_slots.pop()
        self._drop_pages(slot, -(-span.stop // self.spec.page_size))
        self._lengths[slot] = span.start

    def _grow(self, span: Span) -> int:
        slot = self._slots[span.sequence]
        pages = -(-span.stop // self.spec.page_size)
        for index in range(self._held[slot], pages):
            self.tables[slot, index] = self._take_page()
        self._held[slot] = pages
        return slot

    def _take_page(self) -> int:
        if self._returned:
            return self._returned.pop()
        self._fresh += 1
        return self._fresh - 1

    def _drop_pages(self, slot: int, keep: int) -> None:
        for index in range(self._held[slot] - 1, keep - 1, -1):
            self._returned.append(int(self.tables[slot, index]))
            self.tables[slot, index] = -1
        self._held[slot] = min(self._held[slot], keep)
