"""The text, cut in two: one half to calibrate with, windows of the other, which nothing was fitted to, to measure the plan on."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from mixplan.compiler.calibration.collect import calibration_tokens
from mixplan.compiler.frontends import Captured
from mixplan.runtime.errors import OptionError, RequestError
from mixplan.runtime.text.tokenizer import Tokenizer

__all__ = ["TextSource", "Texts", "calibration_windows", "read_texts"]

TextSource: TypeAlias = str | Path | Sequence[int]
"""A file of UTF-8, or token ids."""

_CONTEXT, _WINDOWS = 512, 16
_GRADIENT_TOKENS = 4096
_LEAST = 16


@dataclass(frozen=True)
class Texts:
    """Windows of token ids, i64 [W, L]. calibration: for everything that is fitted; gradients: those of them that gradients are taken of.

    held_out: to measure on. facts: what the receipt says of them.
    """

    calibration: NDArray[np.int64]
    gradients: NDArray[np.int64]
    held_out: NDArray[np.int64]
    facts: dict[str, str]


def read_texts(captured: Captured, text: TextSource, eval_text: TextSource | None) -> Texts:
    """Tokenize and cut.

    Calibration takes up to 32,768 tokens (gradients 4,096 of them) in windows of 512 spread over the text's first half, or over all of it
    where eval_text is given.
    Held out are 16 windows of 512 tokens spread over its second half, or the first 16 of eval_text. Shorter texts give fewer and shorter
    windows; OptionError where a half has fewer than 16 tokens.
    """
    ids, digest = _ids(captured, text, "text")
    context = min(_CONTEXT, captured.model.context_length)
    if eval_text is None:
        half = len(ids) // 2
        fit, held = ids[:half], ids[half:]
        windows = _spread(_windows(held, context, "the held-out half of the text"), _WINDOWS)
        facts = {"text": digest, "eval_text": "second half of the text"}
    else:
        fit = ids
        held, other = _ids(captured, eval_text, "eval_text")
        windows = _windows(held, context, "eval_text")[:_WINDOWS]
        facts = {"text": digest, "eval_text": other}
    tokens = calibration_tokens(captured.model.parameters)
    calibration = _spread(_windows(fit, context, "the calibration half of the text"), max(tokens // context, 1))
    gradients = _spread(calibration, max(_GRADIENT_TOKENS // context, 1))
    facts["calibration"] = f"{calibration.shape[0]} windows of {calibration.shape[1]} tokens"
    facts["held_out"] = f"{windows.shape[0]} windows of {windows.shape[1]} tokens"
    return Texts(calibration, gradients, windows, facts)


def calibration_windows(captured: Captured, text: TextSource) -> tuple[NDArray[np.int64], str]:
    """Windows of a text that is for calibration alone, i64 [W, L], as many as pay, and what identifies the text. OptionError as above."""
    ids, digest = _ids(captured, text, "text")
    context = min(_CONTEXT, captured.model.context_length)
    tokens = calibration_tokens(captured.model.parameters)
    return _spread(_windows(ids, context, "the text"), max(tokens // context, 1)), digest


def _windows(ids: NDArray[np.int64], context: int, what: str) -> NDArray[np.int64]:
    """All windows that do not overlap; one of all tokens where they do not fill one."""
    if len(ids) < _LEAST:
        raise OptionError(f"{what[0].upper()}{what[1:]} has {len(ids)} tokens; at least {_LEAST} are needed.", hint="Give a longer text.")
    length = min(context, len(ids))
    count = len(ids) // length
    cut: NDArray[np.int64] = ids[: count * length].reshape(count, length)
    return cut


def _spread(windows: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """At most `count` of the windows, at equal distances."""
    if len(windows) <= count:
        return windows
    chosen: NDArray[np.int64] = windows[np.arange(count) * len(windows) // count]
    return chosen


def _ids(captured: Captured, text: TextSource, name: str) -> tuple[NDArray[np.int64], str]:
    """Token ids, and what identifies the text."""
    if isinstance(text, str | Path):
        return _encoded(captured, Path(text), name)
    try:
        ids = np.asarray([int(i) for i in text], np.int64)
    except (TypeError, ValueError):
        raise OptionError(f"{name} is neither a file nor a list of token ids.") from None
    vocabulary = captured.model.vocab_size
    if len(ids) and (ids.min() < 0 or ids.max() >= vocabulary):
        raise OptionError(f"{name} has token ids from {ids.min()} to {ids.max()}; allowed are 0 to {vocabulary - 1}.")
    return ids, f"{len(ids)} token ids, sha256 {hashlib.sha256(ids.tobytes()).hexdigest()}"


def _encoded(captured: Captured, path: Path, name: str) -> tuple[NDArray[np.int64], str]:
    if "tokenizer.json" not in captured.files:
        raise OptionError(f"{name} is a file, and the model has no tokenizer.", hint="From Python, give token ids.")
    try:
        data = path.expanduser().read_bytes()
        text = data.decode("utf-8")
    except OSError as error:
        raise OptionError(f"{name} {path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise OptionError(f"{name} {path} is not UTF-8: {error}.", hint="Convert it first, for example with iconv.") from None
    try:
        ids = Tokenizer(captured.files["tokenizer.json"]).encode(text, add_special_tokens=False)
    except RequestError as error:
        raise OptionError(f"{name} {path}: {error.message}") from error
    if ids and max(ids) >= captured.model.vocab_size:
        raise OptionError(f"The tokenizer gives token {max(ids)}, and the model has {captured.model.vocab_size}.")
    return np.asarray(ids, np.int64), f"{path.name}, sha256 {hashlib.sha256(data).hexdigest()}"
