"""A compact tokenizer.json is the same tokenizer, and one that cannot be compact stays as it is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from mixplan.compiler.tokenizer.compact import compact_tokenizer

TEXT = "Many words, many merges: 1,234 of them; größer, 日本語, 🙂.\n\n\tThe end."


def _byte_level() -> dict[str, Any]:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator([TEXT] * 9, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False))
    backend.add_special_tokens(["<s>", "</s>"])
    content: dict[str, Any] = json.loads(backend.to_str())
    return content


def _data(content: dict[str, Any]) -> bytes:
    return json.dumps(content, ensure_ascii=False).encode()


def test_the_same_tokenizer_in_fewer_bytes() -> None:
    data = _data(_byte_level())
    compact = compact_tokenizer(data)
    assert len(compact) < len(data)
    assert all(isinstance(merge, str) for merge in json.loads(compact)["model"]["merges"])
    old, new = Tokenizer.from_str(data.decode()), Tokenizer.from_str(compact.decode())
    assert new.to_str() == old.to_str()
    assert new.encode(TEXT).ids == old.encode(TEXT).ids
    assert compact_tokenizer(compact) == compact


@pytest.mark.parametrize("pair", [["a b", "c"], ["#version", "x"]])
def test_merges_that_would_read_otherwise(pair: list[str]) -> None:
    content = _byte_level()
    model = content["model"]
    for token in (*pair, "".join(pair)):
        model["vocab"].setdefault(token, len(model["vocab"]) + 10)
    model["merges"].insert(0, pair)
    data = _data(content)
    assert compact_tokenizer(data) == data


def test_other_models_stay_as_they_are() -> None:
    data = Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>")).to_str().encode()
    assert compact_tokenizer(data) == data
