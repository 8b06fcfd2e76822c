"""Calls of a loaded model with values of a wrong kind, and plans that nobody closes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mixplan.runtime import load
from mixplan.runtime.errors import OptionError, PlanError, RequestError
from mixplan.runtime.model import Model
from mixplan.runtime.text.tokenizer import Tokenizer

WRONG: dict[str, Callable[[Model], object]] = {
    "no prompt": lambda m: m.generate(None),  # type: ignore[arg-type]
    "a number": lambda m: m.generate(3),  # type: ignore[arg-type]
    "bytes": lambda m: m.generate(b"hi"),
    "one message": lambda m: m.generate({"role": "user", "content": "x"}),  # type: ignore[arg-type]
    "half a surrogate pair": lambda m: m.generate("\ud800"),
    "settings as a dict": lambda m: m.generate("hi", {"temperature": 1.0}),  # type: ignore[arg-type]
    "stop of a number": lambda m: m.generate("hi", stop=3),
    "cut to a text": lambda m: m.truncate(0, "a"),  # type: ignore[arg-type]
    "cut to a fraction": lambda m: m.truncate(0, 1.5),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.replace(" ", "-"))
def test_wrong_kind(case: str, tiny_llama_plan: Path) -> None:
    with load(tiny_llama_plan, device="null") as model, pytest.raises(RequestError):
        WRONG[case](model)


@pytest.mark.parametrize("options", [{"threads": 1.5}, {"threads": "2"}, {"max_sequences": "a"}, {"kv_tokens": 1.5}], ids=str)
def test_options_of_a_wrong_kind(options: dict[str, Any], tiny_llama_plan: Path) -> None:
    with pytest.raises(OptionError, match=next(iter(options))):
        load(tiny_llama_plan, device="null", **options)


def test_a_path_with_a_null_byte() -> None:
    with pytest.raises(PlanError, match="null byte"):
        load("a\0b")


@pytest.mark.parametrize(
    "data",
    [
        # Each makes the tokenizers library panic, which is no Exception.
        b'{"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":[["a","b"]],"continuing_subword_prefix":"#####"}}',
        b'{"normalizer":{"type":"Precompiled","precompiled_charsmap":"AAAA"},"model":{"type":"BPE","vocab":{},"merges":[]}}',
    ],
    ids=["prefix", "charsmap"],
)
def test_a_tokenizer_that_panics_is_a_malformed_plan(data: bytes) -> None:
    with pytest.raises(PlanError, match=r"tokenizer\.json is malformed"):
        Tokenizer(data)


def test_descriptors_of_a_plan_that_nobody_closed_are_given_back(tiny_llama_plan: Path) -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    load(tiny_llama_plan, device="null").close()
    before = count()
    model = load(tiny_llama_plan, device="null")
    assert count() > before
    del model
    assert count() == before
