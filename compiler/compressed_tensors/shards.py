"""Tensors into safetensors files of bounded size, with the index that transformers and engines read."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

__all__ = ["ShardWriter"]

_SHARD_BYTES = 1 << 30


class ShardWriter:
    """Collects tensors and writes a file whenever enough have come together; memory stays at about one file's size."""

    def __init__(self, root: Path, shard_bytes: int = _SHARD_BYTES) -> None:
        self.root = root
        self.nbytes = 0
        self._shard_bytes = shard_bytes
        self._waiting: dict[str, torch.Tensor] = {}
        self._filled = 0
        self._files: list[list[str]] = []

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Take a tensor; names must differ."""
        if self._waiting and self._filled + tensor.nbytes > self._shard_bytes:
            self._write()
        self._waiting[name] = tensor.contiguous()
        self._filled += tensor.nbytes
        self.nbytes += tensor.nbytes

    def finish(self) -> None:
        """Write what is left, and give the files their names: model.safetensors, or numbered ones with their index."""
        self._write()
        count = len(self._files)
        if count == 1:
            self._part(0).rename(self.root / "model.safetensors")
            return
        places: dict[str, str] = {}
        for number, names in enumerate(self._files):
            file = f"model-{number + 1:05d}-of-{count:05d}.safetensors"
            self._part(number).rename(self.root / file)
            places |= dict.fromkeys(names, file)
        index = {"metadata": {"total_size": self.nbytes}, "weight_map": dict(sorted(places.items()))}
        (self.root / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")

    def _write(self) -> None:
        if self._waiting:
            part = self._part(len(self._files))
            save_file(self._waiting, part, metadata={"format": "pt"})
            part.chmod(0o644)  # safetensors makes it for its owner alone
            self._files.append(list(self._waiting))
            self._waiting, self._filled = {}, 0

    def _part(self, number: int) -> Path:
        return self.root / f"part-{number}.safetensors"
