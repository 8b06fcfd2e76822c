"""A trace of requests: JSON lines, each an object.

| field | is |
|---|---|
| `prompt`, `token_ids` or `prompt_tokens` | one of them: the prompt's text, its token ids, or only how many |
| `max_tokens` | tokens of the answer, 32 where it is left out; end tokens do not end it |
| `arrival` | seconds after the start when the request comes; on every line or on none, never going back |
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from mixplan.runtime.errors import OptionError

__all__ = ["TraceLine", "read_trace"]

_PROMPTS = ("prompt", "token_ids", "prompt_tokens")
_FIELDS = (*_PROMPTS, "max_tokens", "arrival")
_DEFAULT_NEW = 32


@dataclass(frozen=True)
class TraceLine:
    """One request; `where` is "FILE:LINE" for messages."""

    where: str
    prompt: str | None
    token_ids: tuple[int, ...] | None
    prompt_tokens: int
    max_tokens: int
    arrival: float | None

    def check_ids(self, ids: Sequence[int], vocabulary: int) -> None:
        """OptionError for a token id that the model does not have."""
        for token in ids:
            if not 0 <= token < vocabulary:
                _refuse(self.where, f"field 'token_ids' holds {token}; this plan has ids from 0 to {vocabulary - 1}.")

    def check_length(self, tokens: int, limit: int) -> None:
        """OptionError for a prompt that is empty, or leaves no room for a new token in `limit`."""
        name = "prompt" if self.prompt is not None else "token_ids" if self.token_ids is not None else "prompt_tokens"
        if not 1 <= tokens < limit:
            _refuse(self.where, f"field {name!r} has {tokens} tokens; this plan takes prompts of 1 to {limit - 1}.")


def read_trace(path: Path) -> list[TraceLine]:
    """The requests of a trace file; empty lines are skipped. OptionError names the line and the field that is wrong."""
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise OptionError(f"The trace {path} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise OptionError(f"The trace {path} is not UTF-8: {error}.", hint="A trace is a file of JSON lines.") from error
    # Not splitlines(), which would also break at characters that may stand inside a JSON string.
    lines = [_line(f"{path}:{number}", line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise OptionError(f"The trace {path} has no requests.", hint="A trace is a file of JSON lines, one for each request.")
    _check_arrivals(lines)
    return lines


def _line(where: str, text: str) -> TraceLine:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        _refuse(where, f"the line is not JSON: {error}.")
    if not isinstance(data, dict):
        _refuse(where, f"the line is {_shown(data)}; it must be an object.")
    for name in data:
        if name not in _FIELDS:
            _refuse(where, f"field {name!r} is not known; allowed: {', '.join(_FIELDS)}.")
    given = [name for name in _PROMPTS if name in data]
    if len(given) != 1:
        _refuse(where, f"it has {' and '.join(map(repr, given)) or 'no prompt'}; give one of {', '.join(map(repr, _PROMPTS))}.")
    return TraceLine(
        where=where,
        prompt=_text(where, data["prompt"]) if "prompt" in data else None,
        token_ids=_ids(where, data["token_ids"]) if "token_ids" in data else None,
        prompt_tokens=_count(where, "prompt_tokens", data.get("prompt_tokens", 1)),
        max_tokens=_count(where, "max_tokens", data.get("max_tokens", _DEFAULT_NEW)),
        arrival=_seconds(where, data["arrival"]) if "arrival" in data else None,
    )


def _text(where: str, value: Any) -> str:
    if not isinstance(value, str):
        _refuse(where, f"field 'prompt' is {_shown(value)}; it must be a string.")
    return value


def _ids(where: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(isinstance(token, int) and not isinstance(token, bool) for token in value):
        _refuse(where, f"field 'token_ids' is {_shown(value)}; it must be a list of whole numbers.")
    return tuple(value)


def _count(where: str, name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        _refuse(where, f"field {name!r} is {_shown(value)}; it must be a whole number, at least 1.")
    return value


def _seconds(where: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value) or value < 0:
        _refuse(where, f"field 'arrival' is {_shown(value)}; it must be a number of seconds, at least 0.")
    return float(value)


def _check_arrivals(lines: Sequence[TraceLine]) -> None:
    last = 0.0
    for line in lines:
        if (line.arrival is None) != (lines[0].arrival is None):
            have = "has no" if line.arrival is None else "has a"
            _refuse(line.where, f"it {have} field 'arrival', unlike the first; give one on every line, or on none.")
        if line.arrival is not None:
            if line.arrival < last:
                _refuse(line.where, f"field 'arrival' is {line.arrival}, earlier than {last} on a line before; sort the lines.")
            last = line.arrival


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _refuse(where: str, what: str) -> NoReturn:
    raise OptionError(f"{where}: {what}")
