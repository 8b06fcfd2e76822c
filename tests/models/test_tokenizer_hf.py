"""Tokenizer, chat template and end tokens of Hugging Face directories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from mixplan.compiler.tokenizer import hf_text_assets
from mixplan.runtime.errors import CheckpointError
from mixplan.runtime.text.chat import ChatTemplate
from mixplan.runtime.text.tokenizer import Tokenizer

_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
_SAMPLES = ("Hello 2026!", "你好 👋🏽", "<bos>x<eos>", "  a\n\nb ", "")


def _backend() -> Backend:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=320, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    backend.train_from_iterator(["Hello hello there you"] * 3, trainer)
    backend.add_special_tokens([AddedToken(token, special=True) for token in ("<bos>", "<eos>", "<turn>")])
    backend.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", backend.token_to_id("<bos>"))])
    return backend


def _directory(path: Path, **settings: Any) -> Backend:
    backend = _backend()
    # Settings for training that a saved tokenizer may carry.
    backend.enable_truncation(4)
    backend.enable_padding(length=16)
    backend.save(str(path / "tokenizer.json"))
    eos = {"__type": "AddedToken", "content": "<eos>", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    content = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<bos>", "eos_token": eos, **settings}
    (path / "tokenizer_config.json").write_text(json.dumps(content))
    return backend


def test_ids_and_chat_equal_transformers(tmp_path: Path) -> None:
    _directory(tmp_path, chat_template=_TEMPLATE)
    assets = hf_text_assets(tmp_path)
    tokenizer = Tokenizer(assets.files["tokenizer.json"], ChatTemplate.from_json(assets.files["chat.json"]))
    reference = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    for text in _SAMPLES:
        assert tokenizer.encode(text) == reference(text)["input_ids"]
        assert tokenizer.encode(text, add_special_tokens=False) == reference(text, add_special_tokens=False)["input_ids"]
    messages = [{"role": "user", "content": "Hello there"}]
    assert tokenizer.encode_chat(messages) == reference.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)


@pytest.mark.parametrize("bos", [True, False, None])
@pytest.mark.parametrize("eos", [True, False, None])
def test_beginning_and_end_tokens_that_the_settings_ask_for(tmp_path: Path, bos: bool | None, eos: bool | None) -> None:
    settings = {name: value for name, value in (("add_bos_token", bos), ("add_eos_token", eos)) if value is not None}
    _directory(tmp_path, **settings)
    tokenizer = Tokenizer(hf_text_assets(tmp_path).files["tokenizer.json"])
    reference = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert tokenizer.encode("Hello") == reference("Hello")["input_ids"]


def test_long_text_is_neither_cut_nor_padded(tmp_path: Path) -> None:
    _directory(tmp_path)
    tokenizer = Tokenizer(hf_text_assets(tmp_path).files["tokenizer.json"])
    assert len(tokenizer.encode("x" * 40)) == 41
    assert len(tokenizer.encode("x")) == 2


def test_end_tokens(tmp_path: Path) -> None:
    backend = _directory(tmp_path)
    eos, turn = backend.token_to_id("<eos>"), backend.token_to_id("<turn>")
    assert hf_text_assets(tmp_path).eos_token_ids == (eos,)
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": turn, "bos_token_id": 5}))
    assert hf_text_assets(tmp_path).eos_token_ids == (turn,)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [turn, 7]}))
    assert hf_text_assets(tmp_path).eos_token_ids == (turn, 7)
    # With a chat template the tokenizer's own end token ends the turn.
    (tmp_path / "chat_template.jinja").write_text(_TEMPLATE)
    assets = hf_text_assets(tmp_path)
    assert assets.eos_token_ids == (turn, 7, eos)
    assert assets.bos_token_id == backend.token_to_id("<bos>")


@pytest.mark.parametrize("where", ["jinja", "json", "list", "config"])
def test_places_of_the_chat_template(tmp_path: Path, where: str) -> None:
    settings: dict[str, Any] = {"config": {"chat_template": _TEMPLATE}}.get(where, {})
    if where == "list":
        settings = {"chat_template": [{"name": "tool_use", "template": "x"}, {"name": "default", "template": _TEMPLATE}]}
    _directory(tmp_path, **settings)
    if where == "jinja":
        (tmp_path / "chat_template.jinja").write_text(_TEMPLATE)
    if where == "json":
        (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": _TEMPLATE}))
    assert hf_text_assets(tmp_path).files["chat_template.jinja"].decode() == _TEMPLATE


@pytest.mark.filterwarnings("ignore")
def test_slow_tokenizer_files_are_converted(tmp_path: Path) -> None:
    backend = _backend()
    backend.model.save(str(tmp_path))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer", "eos_token": "<eos>"}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    assets = hf_text_assets(tmp_path)
    assert "converted" in assets.notes[0]
    reference = AutoTokenizer.from_pretrained(tmp_path)
    tokenizer = Tokenizer(assets.files["tokenizer.json"])
    for text in ("Hello there 2026", "你好 👋🏽"):
        assert tokenizer.encode(text) == reference(text)["input_ids"]


def test_directory_without_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 3}))
    assets = hf_text_assets(tmp_path)
    assert assets.files == {} and assets.eos_token_ids == (3,) and "token ids only" in assets.notes[0]


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "generation_config.json"])
def test_broken_file(tmp_path: Path, name: str) -> None:
    _directory(tmp_path)
    (tmp_path / name).write_text("{")
    with pytest.raises(CheckpointError, match=name):
        hf_text_assets(tmp_path)


def test_config_that_is_no_object(tmp_path: Path) -> None:
    _directory(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(CheckpointError, match="JSON list; it must hold an object"):
        hf_text_assets(tmp_path)
