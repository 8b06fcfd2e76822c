"""Incremental decoding: token ids in, whole characters out.

A token may hold part of a character, and how it reads may depend on the token before it (a sentencepiece decoder drops the blank before the
first token only). So each token is decoded together with the few tokens before it, and what the longer text adds is emitted, unless it ends
in U+FFFD, the sign that its last character is not complete yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["StreamDecoder"]

_BROKEN = "\ufffd"
# A character has at most 4 bytes, so 4 tokens at most. Later than that the bytes are no UTF-8, and U+FFFD is what they read as.
_LONGEST_WAIT = 4
# Tokens kept in front of the new ones for context, at most.
_CONTEXT = 4


class StreamDecoder:
    """Decodes one sequence as it grows. `decode` turns any run of ids into text; it is never given more than 8 ids."""

    def __init__(self, decode: Callable[[Sequence[int]], str], context: Sequence[int] = ()) -> None:
        """`context`: the prompt's last ids, so that the first token reads as the continuation that it is; they are not emitted."""
        self._decode = decode
        self._window: list[int] = []
        # The first `_done` ids of the window have been emitted, or are context; alone they read as `_prefix`.
        self._done = 0
        self._prefix = ""
        for size in range(min(_CONTEXT, len(context)), 0, -1):
            # It must not begin or end within a character.
            text = decode(context[-size:])
            if _BROKEN not in text:
                self._window, self._done, self._prefix = list(context[-size:]), size, text
                break

    def push(self, token: int) -> str:
        """The text that this token completes; "" while its last character waits for more bytes."""
        self._window.append(token)
        text = self._decode(self._window)
        if text.endswith(_BROKEN) and len(self._window) - self._done < _LONGEST_WAIT:
            return ""
        return self._emit(text)

    def flush(self) -> str:
        """The rest, once no more tokens come: an incomplete character reads as U+FFFD."""
        return self._emit(self._decode(self._window)) if len(self._window) > self._done else ""

    def _emit(self, text: str) -> str:
        # A byte-fallback decoder reads a whole run of byte tokens as broken when its last byte is missing; then the new ids alone count.
        clean = text.startswith(self._prefix)
        new = text[len(self._prefix) :] if clean else self._decode(self._window[self._done :])
        if new or len(self._window) > _CONTEXT:
            # The ids just emitted are whole characters, so they are context enough; ids without text (special tokens) are not.
            del self._window[: min(self._done, len(self._window) - 1)]
        del self._window[:-_CONTEXT]
        self._done = len(self._window)
        self._prefix = self._decode(self._window)
        return new
