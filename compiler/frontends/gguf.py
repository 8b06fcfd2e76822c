"""A GGUF file: metadata, quantized tensors, tokenizer and chat template in one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import torch

from mixplan.compiler.capture import capture_decoder
from mixplan.compiler.frontends.base import Captured, Source
from mixplan.compiler.frontends.build import build_model
from mixplan.compiler.frontends.gguf_config import gguf_config, rope_factors
from mixplan.compiler.frontends.quiet import quiet_transformers
from mixplan.compiler.frontends.text import check_record, model_record
from mixplan.compiler.tokenizer.gguf import gguf_text_assets
from mixplan.compiler.weights.gguf import GgufWeights
from mixplan.compiler.weights.gguf_file import GgufFile
from mixplan.runtime.errors import CheckpointError, MissingExtraError, UnsupportedError

__all__ = ["GgufCheckpoint"]


class GgufCheckpoint:
    """An opened GGUF file. Opening checks header, metadata and tensor table against each other; `capture` exports the model."""

    @quiet_transformers()
    def __init__(self, path: Path) -> None:
        try:
            import gguf  # noqa: F401
        except ImportError as error:
            raise MissingExtraError("Reading a GGUF file", "hf") from error
        self.path = path
        self.file = GgufFile(path)
        try:
            _check_whole(self.file)
            self.config: Any = gguf_config(self.file)
            self.assets = gguf_text_assets(self.file)
            self.model: Any = build_model(self.config, path)
            self.weights = GgufWeights(self.model, self.file)
            _scale_frequencies(self.model, self.file)
        except BaseException:
            self.file.close()
            raise

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know about the text side of the checkpoint."""
        return self.assets.notes

    @quiet_transformers()
    def capture(self) -> Captured:
        """Export the model; parameters are read later, through `weights`."""
        captured = capture_decoder(self.model)
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        record = msgspec.structs.replace(
            model_record(self.config, {}, parameters), bos_token_id=self.assets.bos_token_id, eos_token_ids=self.assets.eos_token_ids
        )
        check_record(record, self.path)
        return Captured(captured.graph, self.weights, record, self._source(), dict(self.assets.files), captured.tied)

    def close(self) -> None:
        """Close the file."""
        self.weights.close()

    def _source(self) -> Source:
        return Source("gguf", self.path.stem, {self.path.name: self.path})


def _check_whole(file: GgufFile) -> None:
    parts = file.metadata.get("split.count", 1)
    if isinstance(parts, int) and parts > 1:
        raise UnsupportedError(
            f"{file.path} is one of the {parts} parts of a split GGUF file; mixplan reads whole files.",
            hint="Merge the parts first: llama-gguf-split --merge FIRST_PART WHOLE.gguf",
        )


def _scale_frequencies(model: Any, file: GgufFile) -> None:
    """Divide the rotary frequencies by the file's factors: so llama.cpp stores Llama 3's rope scaling, which transformers' reader skips."""
    factors = rope_factors(file, "rope_freqs")
    if factors is None:
        return
    scaled = 0
    for module in model.modules():
        frequencies = getattr(module, "inv_freq", None)
        if isinstance(frequencies, torch.Tensor) and frequencies.shape == factors.shape:
            with torch.no_grad():
                frequencies.div_(torch.from_numpy(factors))
            if isinstance(getattr(module, "original_inv_freq", None), torch.Tensor):
                module.original_inv_freq = frequencies.clone()
            scaled += 1
    if not scaled:
        raise CheckpointError(
            f"{file.path}: rope_freqs.weight has {factors.size} factors, but the model has no rotary embedding of as many frequencies.",
            hint="Convert the model to GGUF again.",
        )
