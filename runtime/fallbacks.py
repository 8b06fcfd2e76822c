"""What failed and was replaced: told once in the log, kept for the metrics, and refused where the caller wants no replacement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mixplan.runtime.errors import FallbackError

__all__ = ["FALLBACK", "Fallback", "Fallbacks"]

FALLBACK = "reference"
"""The device that runs everything, the last implementation in every list."""


@dataclass(frozen=True)
class Fallback:
    """In region `region`, `failed` could not be used, for this reason; `taken` is what runs instead."""

    region: str
    failed: str
    taken: str
    reason: str


@dataclass
class Fallbacks:
    """Of one loaded plan of `regions` regions. strict: the first one is an error."""

    regions: int
    strict: bool = False
    entries: list[Fallback] = field(default_factory=list)

    def add(self, found: Sequence[Fallback]) -> None:
        """Enter them, with one warning for those that differ in nothing but the region. FallbackError where the caller is strict."""
        if found and self.strict:
            first = found[0]
            raise FallbackError(
                f"Region {first.region!r}: {first.failed} cannot be used, and strict forbids another in its place: {first.reason}",
                hint=f"Mend it; or load without strict, which goes on with {first.taken}.",
            )
        self.entries += found
        for failed, taken, reason in dict.fromkeys((one.failed, one.taken, one.reason) for one in found):
            count = sum((one.failed, one.taken, one.reason) == (failed, taken, reason) for one in found)
            slow = ", which is slow," if FALLBACK in taken else ""
            # Imported here: most plans load without a word.
            import logging

            logging.getLogger("mixplan.runtime").warning(
                "%d of %d regions: %s%s instead of %s: %s", count, self.regions, taken, slow, failed, reason
            )
