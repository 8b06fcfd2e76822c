"""A text as token windows: tokenized once, cut into windows of equal length that do not overlap."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mixplan.runtime.errors import RequestError

if TYPE_CHECKING:
    from mixplan.runtime.text.tokenizer import Tokenizer

__all__ = ["CONTEXT", "WINDOWS", "Windows", "text_windows"]

Windows: TypeAlias = NDArray[np.int64]
"""Token ids [W, L]."""

CONTEXT = 512
"""Tokens of a window, unless said otherwise."""
WINDOWS = 16
"""Windows, unless said otherwise, of a text that has so many."""
# Where a text is not read to its end, the last tokens before the cut may not be those of the whole text.
_SLACK = 64


def text_windows(tokenizer: Tokenizer, text: Path | str, *, context: int = CONTEXT, windows: int | None = None) -> Windows:
    """The first `windows` windows of `context` tokens of a text (a file, or the text itself), i64 [W, L].

    windows: None is 16, or as many as the text fills. What the tokenizer puts before any text (BOS) stands before each window, and counts
    for its length. RequestError for a text that is too short, is not UTF-8 or cannot be read.
    """
    if context < 2:
        raise RequestError(f"The context is {context} tokens; at least 2 are needed, one to predict from and one to predict.")
    if windows is not None and windows < 1:
        raise RequestError(f"{windows} windows are asked for; at least 1 is needed.")
    before = _before(tokenizer)
    length = context - len(before)
    if length < 1:
        raise RequestError(f"The context is {context} tokens, and the tokenizer puts {len(before)} before each text.")
    ids = _encode(tokenizer, text, length * (WINDOWS if windows is None else windows))
    count = min(len(ids) // length, WINDOWS if windows is None else windows)
    if count < 1 or (windows is not None and count < windows):
        raise RequestError(
            f"The text has {len(ids):,} tokens; {windows or 1} windows of {context} need {(windows or 1) * length:,}.",
            hint="Give a longer text, fewer windows or a shorter context.",
        )
    cut = np.asarray(ids[: count * length], np.int64).reshape(count, length)
    return np.concatenate([np.broadcast_to(np.asarray(before, np.int64), (count, len(before))), cut], 1)


def _before(tokenizer: Tokenizer) -> list[int]:
    """The token ids that the tokenizer puts before a text."""
    plain, full = tokenizer.encode("a", add_special_tokens=False), tokenizer.encode("a")
    for start in range(len(full) - len(plain) + 1):
        if full[start : start + len(plain)] == plain:
            return full[:start]
    return []


def _encode(tokenizer: Tokenizer, text: Path | str, needed: int) -> list[int]:
    """At least the first `needed` token ids of the text, or all that it has."""
    if isinstance(text, str):
        return tokenizer.encode(text, add_special_tokens=False)
    characters = 16 * needed + (1 << 16)
    while True:
        part, whole = _read(text, characters)
        ids = tokenizer.encode(part, add_special_tokens=False)
        if whole or len(ids) >= needed + _SLACK:
            return ids
        characters *= 4


def _read(path: Path, characters: int) -> tuple[str, bool]:
    """The beginning of a file, and whether it is all of it."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            part = file.read(characters)
            return part, not file.read(1)
    except UnicodeDecodeError as error:
        raise RequestError(f"{path} is not UTF-8: {error}.", hint="Convert it first, for example with iconv.") from None
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}.") from None
