"""Incremental decoding: token ids in, whole characters out.

A token may hold part of a character, and how it reads may depend on the token before it (a sentencepiece decoder drops the space before the
first token only). So each token is decoded together with the few tokens before it, and what the longer text adds is emitted, unless it ends
in U+FFFD, the sign that its last character is not complete yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["StreamDecoder"]

_INCOMPLETE = "\ufffd"
# A character has at most 4 bytes, so 4 tokens at most. Later than that the bytes are no UTF-8 and U+FFFD is what they read as.
_LONGEST_WAIT = 4
# Tokens kept in front of the new one for context.
_CONTEXT = 4


class StreamDecoder:
    """Decodes one sequence as it grows. `decode` turns any run of ids into text; it is never given more than about 10 ids."""

    def __init__(self, decode: Callable[[Sequence[int]], str], context: Sequence[int] = ()) -> None:
        """`context`: the prompt's last ids, so that the first token reads as the continuation that it is; they are not emitted."""
        self._decode = decode
        self._window: list[int] = list(context[-_CONTEXT:])
        # The first `_done` ids of the window have been emitted (or are context); they read as `_prefix`.
        self._done = len(self._window)
        self._prefix = decode(self._window) if self._window else ""

    def push(self, token: int) -> str:
        """The text that this token completes; "" while its last character waits for more bytes."""
        self._window.append(token)
        text = self._decode(self._window)
        waiting = len(self._window) - self._done
        if text.endswith(_INCOMPLETE) and waiting < _LONGEST_WAIT:
            return ""
        return self._emit(text)

    def flush(self) -> str:
        """The rest, once no more tokens come: an incomplete character reads as U+FFFD."""
        return self._emit(self._decode(self._window)) if len(self._window) > self._done else ""

    def _emit(self, text: str) -> str:
        # A byte-fallback decoder reads a whole run of byte tokens as broken when its last byte is missing; then the new ids alone count.
        clean = text.startswith(self._prefix)
        new = text[len(self._prefix) :] if clean else self._decode(self._window[self._done :])
        del self._window[:-_CONTEXT]
        self._done = len(self._window)
        self._prefix = self._decode(self._window)
        return new
