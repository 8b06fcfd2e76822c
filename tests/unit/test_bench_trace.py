"""Trace files: what is read, and one error for each thing that can be wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from mixplan.runtime.bench.trace import read_trace
from mixplan.runtime.errors import OptionError


def _write(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_all_fields(tmp_path: Path) -> None:
    lines = read_trace(
        _write(
            tmp_path,
            '{"prompt": "a\u2028b", "max_tokens": 5, "arrival": 0}\n\n'
            '{"token_ids": [1, 2], "arrival": 0.5}\r\n{"prompt_tokens": 7, "arrival": 0.5}',
        )
    )
    assert [(line.prompt, line.token_ids, line.prompt_tokens, line.max_tokens, line.arrival) for line in lines] == [
        ("a\u2028b", None, 1, 5, 0.0),
        (None, (1, 2), 1, 32, 0.5),
        (None, None, 7, 32, 0.5),
    ]
    assert [line.where.rpartition(":")[2] for line in lines] == ["1", "3", "4"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no requests"),
        (b"\xff\xfe", "is not UTF-8"),
        ('{"prompt_tokens": 3}\n{"prompt_tokens": ', r":2: the line is not JSON"),
        ("[1]", r":1: the line is \[1\]; it must be an object"),
        ('{"prompt_tokens": 3, "max_token": 4}', r":1: field 'max_token' is not known; allowed: prompt, token_ids, "),
        ('{"max_tokens": 4}', r":1: it has no prompt; give one of 'prompt', 'token_ids', 'prompt_tokens'"),
        ('{"prompt": "x", "prompt_tokens": 4}', r":1: it has 'prompt' and 'prompt_tokens'; give one of"),
        ('{"prompt": 5}', r":1: field 'prompt' is 5; it must be a string"),
        ('{"token_ids": [1, "2"]}', r":1: field 'token_ids' is \[1, \"2\"\]; it must be a list of whole numbers"),
        ('{"token_ids": [true]}', r":1: field 'token_ids' is \[true\]"),
        ('{"prompt_tokens": 0}', r":1: field 'prompt_tokens' is 0; it must be a whole number, at least 1"),
        ('{"prompt_tokens": 2.5}', r":1: field 'prompt_tokens' is 2.5"),
        ('{"prompt_tokens": 3, "max_tokens": "8"}', r":1: field 'max_tokens' is \"8\"; it must be a whole number"),
        ('{"prompt_tokens": 3, "arrival": -1}', r":1: field 'arrival' is -1; it must be a number of seconds, at least 0"),
        ('{"prompt_tokens": 3, "arrival": NaN}', r":1: field 'arrival' is NaN"),
        ('{"prompt_tokens": 3, "arrival": 1}\n{"prompt_tokens": 3}', r":2: it has no field 'arrival', unlike the first"),
        ('{"prompt_tokens": 3}\n{"prompt_tokens": 3, "arrival": 1}', r":2: it has a field 'arrival', unlike the first"),
        ('{"prompt_tokens": 3, "arrival": 2}\n{"prompt_tokens": 3, "arrival": 1}', r":2: field 'arrival' is 1.0, earlier than 2.0"),
        ('{"prompt": {"' + "x" * 100 + '": 1}}', r"field 'prompt' is .{57}\.\.\.; it must be a string"),
    ],
)
def test_what_can_be_wrong(tmp_path: Path, text: str | bytes, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        read_trace(_write(tmp_path, text))


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cannot be read"):
        read_trace(tmp_path / "none.jsonl")


def test_prompts_that_a_plan_cannot_take(tmp_path: Path) -> None:
    (line,) = read_trace(_write(tmp_path, '{"token_ids": [1, 99]}'))
    with pytest.raises(OptionError, match=r":1: field 'token_ids' holds 99; this plan has ids from 0 to 98"):
        line.check_ids((1, 99), 99)
    with pytest.raises(OptionError, match=r":1: field 'token_ids' has 2 tokens; this plan takes prompts of 1 to 1"):
        line.check_length(2, 2)
