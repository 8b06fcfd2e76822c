"""A Hugging Face directory: config.json, safetensors, tokenizer files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import torch

from mixplan.compiler.capture import capture_decoder
from mixplan.compiler.frontends.base import Captured, Source
from mixplan.compiler.frontends.build import build_model
from mixplan.compiler.frontends.config import load_config, read_json
from mixplan.compiler.frontends.quiet import quiet_transformers
from mixplan.compiler.frontends.text import check_record, model_record
from mixplan.compiler.tokenizer.hf import hf_text_assets
from mixplan.compiler.weights.converted import ConvertedWeights
from mixplan.compiler.weights.directory import ShardedTensors

__all__ = ["HfCheckpoint"]

_HASHED = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


class HfCheckpoint:
    """An opened directory. Opening checks config and headers against each other; `capture` exports the model."""

    @quiet_transformers()
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config: Any = load_config(folder)
        self.generation = read_json(folder / "generation_config.json")
        self.assets = hf_text_assets(folder)
        self.tensors = ShardedTensors(folder)
        try:
            self.model: Any = build_model(self.config, folder / "config.json")
            self.weights = ConvertedWeights(self.model, self.tensors)
        except BaseException:
            self.tensors.close()
            raise

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know about the text side of the checkpoint."""
        return self.assets.notes

    @quiet_transformers()
    def capture(self) -> Captured:
        """Export the model; persistent buffers are read now, parameters later through `weights`."""
        buffers = dict(self.model.named_buffers())
        with torch.no_grad():
            for name in self.weights.buffers:
                buffers[name].copy_(torch.from_numpy(self.weights.read(name)))
        captured = capture_decoder(self.model)
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        record = model_record(self.config, self.generation, parameters)
        if self.assets.files:  # the tokenizer knows its own end tokens
            record = msgspec.structs.replace(record, bos_token_id=self.assets.bos_token_id, eos_token_ids=self.assets.eos_token_ids)
        check_record(record, self.folder)
        return Captured(captured.graph, self.weights, record, self._source(), dict(self.assets.files), captured.tied)

    def close(self) -> None:
        """Close the weight files."""
        self.weights.close()

    def _source(self) -> Source:
        paths = [self.folder / name for name in _HASHED] + [file.path for file in self.tensors.files]
        return Source("huggingface", self.folder.resolve().name, {path.name: path for path in paths if path.is_file()})
