"""The checkpoint that a plan was compiled from, for what an export copies: config, tokenizer, tensors that stay as they are."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

import torch

from mixplan.compiler.frontends import Checkpoint
from mixplan.compiler.frontends.gguf import GgufCheckpoint
from mixplan.compiler.frontends.hf import HfCheckpoint
from mixplan.runtime.errors import UnsupportedError

__all__ = ["Original", "Read", "original_of"]

Read = Callable[[], torch.Tensor]

_DTYPES = {"F16": torch.float16, "BF16": torch.bfloat16}
# What lies beside the weights and is no weight: tokenizers, templates, generation defaults, licences.
_COPIED = ("*.json", "*.jinja", "*.txt", "*.model", "LICENSE*", "NOTICE*")
_LARGEST = 64 << 20


class Original(Protocol):
    """What the export takes over."""

    model: Any

    def config(self) -> dict[str, Any]:
        """config.json's content."""

    def files(self) -> dict[str, bytes]:
        """Everything beside config.json and the weights, by file name."""

    def tensors(self) -> Iterator[tuple[str, Read]]:
        """Each stored tensor's name, and a function that reads it."""

    def stored_name(self, parameter: str) -> str | None:
        """The name under which a parameter is stored; None where it is converted while it is loaded."""


class _HfOriginal:
    def __init__(self, checkpoint: HfCheckpoint) -> None:
        self.model = checkpoint.model
        self._checkpoint = checkpoint

    def config(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self._checkpoint.folder / "config.json").read_text(encoding="utf-8"))
        content.pop("quantization_config", None)  # of 8-bit floats, which are written as numbers
        return content

    def files(self) -> dict[str, bytes]:
        folder, found = self._checkpoint.folder, {}
        for pattern in _COPIED:
            for path in sorted(folder.glob(pattern)):
                skipped = path.name == "config.json" or path.name.endswith(".safetensors.index.json")
                if path.is_file() and not skipped and path.stat().st_size <= _LARGEST:
                    found[path.name] = path.read_bytes()
        return found

    def tensors(self) -> Iterator[tuple[str, Read]]:
        for name in sorted(self._checkpoint.tensors.names()):
            yield name, partial(self._read, name)

    def _read(self, name: str) -> torch.Tensor:
        tensors = self._checkpoint.tensors
        array = torch.from_numpy(tensors.read(name))
        return array.to(_DTYPES.get(tensors.entry(name).dtype, array.dtype))

    def stored_name(self, parameter: str) -> str | None:
        return self._checkpoint.weights.stored_name(parameter)


class _GgufOriginal:
    def __init__(self, checkpoint: GgufCheckpoint) -> None:
        self.model = checkpoint.model
        self._checkpoint = checkpoint

    def config(self) -> dict[str, Any]:
        content: dict[str, Any] = self._checkpoint.config.to_dict()
        content.pop("_name_or_path", None)
        return {**content, "architectures": [type(self.model).__name__]}

    def files(self) -> dict[str, bytes]:
        assets = self._checkpoint.assets
        found = {name: data for name, data in assets.files.items() if name in ("tokenizer.json", "chat_template.jinja")}
        ends = list(assets.eos_token_ids)
        generation = {"bos_token_id": assets.bos_token_id, "eos_token_id": ends[0] if len(ends) == 1 else ends}
        found["generation_config.json"] = _json({key: value for key, value in generation.items() if value not in (None, [])})
        if "tokenizer.json" in found:
            from tokenizers import Tokenizer

            backend = Tokenizer.from_str(found["tokenizer.json"].decode())
            tokens = {"bos_token": assets.bos_token_id, "eos_token": ends[0] if ends else None}
            special = {key: backend.id_to_token(index) for key, index in tokens.items() if index is not None}
            found["tokenizer_config.json"] = _json({"tokenizer_class": "PreTrainedTokenizerFast", **special})
        return found

    def tensors(self) -> Iterator[tuple[str, Read]]:
        for name in self._checkpoint.weights.names():
            yield name, partial(self._read, name)

    def _read(self, name: str) -> torch.Tensor:
        return torch.from_numpy(self._checkpoint.weights.read(name))

    def stored_name(self, parameter: str) -> str | None:
        return parameter


def original_of(checkpoint: Checkpoint) -> Original:
    """What an export needs of an opened checkpoint. UnsupportedError for a module in memory."""
    if isinstance(checkpoint, HfCheckpoint):
        return _HfOriginal(checkpoint)
    if isinstance(checkpoint, GgufCheckpoint):
        return _GgufOriginal(checkpoint)
    raise UnsupportedError(
        "A module in memory has no config.json and no tensor names that other engines know.",
        hint="Save it with save_pretrained, compile that directory, and export the plan with it.",
    )


def _json(content: Any) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()
