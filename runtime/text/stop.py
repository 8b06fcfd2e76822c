"""Stop strings in streamed text: they may straddle tokens, and are never emitted."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["StopScanner"]


class StopScanner:
    """Passes text through until a stop string occurs; holds back a tail that may yet become one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        # The stop string that ended the text, None so far.
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Take new text; give what can be shown now. After a match it gives nothing more."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        buffer = self._held + text
        self._held = ""
        found = [(at, stop) for stop in self._stops if (at := buffer.find(stop)) >= 0]
        if found:
            at, self.matched = min(found)
            return buffer[:at]
        keep = max(_overlap(buffer, stop) for stop in self._stops)
        if keep:
            self._held = buffer[-keep:]
            return buffer[:-keep]
        return buffer

    def flush(self) -> str:
        """What was held back, once no more text comes."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that is a beginning of `stop`, but not all of it."""
    for size in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
