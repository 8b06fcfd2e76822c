"""Tokenizer and chat template of a Hugging Face directory.

`tokenizer.json` is taken as it is, but for how merges are spelled. Where a directory has only the files of a slow tokenizer
(`tokenizer.model`, `vocab.json` with `merges.txt`), transformers converts them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mixplan.compiler.tokenizer.assets import TextAssets
from mixplan.compiler.tokenizer.chat_probe import chat_files
from mixplan.compiler.tokenizer.compact import compact_tokenizer
from mixplan.runtime.errors import CheckpointError, MissingExtraError

__all__ = ["hf_text_assets"]

# Files that only a slow tokenizer needs; with one of them transformers can build a fast one.
_SLOW = (
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
    "tokenizer.tiktoken",
    "vocab.txt",
)
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def hf_text_assets(root: str | Path, config: Mapping[str, Any] | None = None) -> TextAssets:
    """Tokenizer, chat template and end tokens of the directory `root`.

    The end tokens are those of generation_config.json, else of config.json (or of `config`, where the caller has read it), else the
    tokenizer's own. A directory without a tokenizer gives no files and a note.
    """
    root = Path(root)
    settings = _read_json(root / "tokenizer_config.json")
    generation = _read_json(root / "generation_config.json")
    config = dict(config) if config is not None else _read_json(root / "config.json")
    special = _special_tokens(root, settings)
    notes: list[str] = []
    tokenizer = root / "tokenizer.json"
    if tokenizer.is_file():
        data = tokenizer.read_bytes()
        ids = _token_ids(tokenizer, data)
    elif any((root / name).is_file() for name in _SLOW):
        data = _converted(root)
        ids = _token_ids(tokenizer, data)
        notes.append("the tokenizer was converted by transformers, since the checkpoint has no tokenizer.json")
    else:
        eos = _ids(generation.get("eos_token_id")) or _ids(config.get("eos_token_id"))
        return TextAssets(eos_token_ids=eos, notes=("the checkpoint has no tokenizer, so the plan takes token ids only",))
    files = {"tokenizer.json": compact_tokenizer(data)}
    template = _template(root, settings)
    if template:
        chat, chat_notes = chat_files(template, special)
        files.update(chat)
        notes.extend(chat_notes)
    bos, own_eos = ids.get(special.get("bos_token", "")), ids.get(special.get("eos_token", ""))
    # generation_config lists every token that ends a turn; where it does not, the tokenizer's own end token is the turn's.
    eos = _ids(generation.get("eos_token_id")) or _ids(config.get("eos_token_id"))
    if own_eos is not None and (template or not eos):
        eos = tuple(dict.fromkeys((*eos, own_eos)))
    stated = _ids(config.get("bos_token_id"))
    return TextAssets(
        files=files, bos_token_id=bos if bos is not None else (stated[0] if stated else None), eos_token_ids=eos, notes=tuple(notes)
    )


def _read_json(path: Path) -> dict[str, Any]:
    """The file's object, {} where there is no such file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}.", hint="Download or write the file again.") from error
    if not isinstance(value, dict):
        raise CheckpointError(
            f"{path} holds a JSON {type(value).__name__}; it must hold an object.", hint="Download or write the file again."
        )
    return value


def _special_tokens(root: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """The template's variables: texts of the special tokens, from tokenizer_config.json, else special_tokens_map.json."""
    older = _read_json(root / "special_tokens_map.json")
    found: dict[str, str] = {}
    for name in _SPECIAL:
        for source in (settings, older):
            value = source.get(name)
            value = value.get("content") if isinstance(value, dict) else value
            if isinstance(value, str):
                found.setdefault(name, value)
    return found


def _template(root: Path, settings: Mapping[str, Any]) -> str | None:
    """The chat template: its own file first, then tokenizer_config.json; of several named ones the default."""
    path = root / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}.", hint="Download the file again, or remove it.") from error
    value = _read_json(root / "chat_template.json").get("chat_template") or settings.get("chat_template")
    if isinstance(value, list):
        named = {item.get("name"): item.get("template") for item in value if isinstance(item, dict)}
        value = named.get("default")
    return value if isinstance(value, str) else None


def _token_ids(path: Path, data: bytes) -> dict[str, int]:
    """Every token's id; CheckpointError where the data are no tokenizer."""
    from tokenizers import Tokenizer

    try:
        return dict(Tokenizer.from_str(data.decode("utf-8")).get_vocab(with_added_tokens=True))
    except Exception as error:  # the library raises bare exceptions
        raise CheckpointError(f"{path} is no tokenizer: {error}.", hint="Download the file again.") from error


def _converted(root: Path) -> bytes:
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise MissingExtraError("Converting a tokenizer that has no tokenizer.json", "hf") from error
    try:
        # The directory alone decides: nothing is looked up on a network.
        tokenizer = AutoTokenizer.from_pretrained(os.fspath(root), local_files_only=True, trust_remote_code=False)
        backend = tokenizer.backend_tokenizer
    except Exception as error:  # anything may go wrong in a file that somebody else wrote
        raise CheckpointError(
            f"{root}: its tokenizer cannot be converted: {type(error).__name__}: {error}.",
            hint="Save it as tokenizer.json (AutoTokenizer.from_pretrained(...).save_pretrained(...)) and compile again.",
        ) from error
    return str(backend.to_str(pretty=False)).encode("utf-8")


def _ids(value: Any) -> tuple[int, ...]:
    if isinstance(value, int) and not isinstance(value, bool):
        return (value,)
    if isinstance(value, list):
        return tuple(v for v in value if isinstance(v, int) and not isinstance(v, bool))
    return ()
