"""The safetensors files of a Hugging Face directory: one file, or shards with an index.

Weights in 8-bit floats are read with their scales multiplied in, and the scales are no tensors of their own (scaled.py).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from mixplan.compiler.weights.check import check_finite
from mixplan.compiler.weights.safetensors_file import SafetensorsFile, TensorEntry
from mixplan.compiler.weights.scaled import hidden_names, scale_names, scaled
from mixplan.runtime.errors import CheckpointError

__all__ = ["ShardedTensors"]

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


class ShardedTensors:
    """All tensors of a checkpoint directory, by the names they are stored under."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: list[SafetensorsFile] = []
        self._where: dict[str, SafetensorsFile] = {}
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        dtypes = {name: file.tensors[name].dtype for name, file in self._where.items()}
        self._scales = scale_names(dtypes)
        self._hidden = hidden_names(dtypes, self._scales)

    def names(self) -> list[str]:
        """Stored names, in no meaningful order."""
        return [name for name in self._where if name not in self._hidden]

    def read(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Rows [start, stop) of a tensor, as SafetensorsFile.read gives them, times the tensor's scale where it has one."""
        rows = self._where[name].read(name, start, stop)
        if name not in self._scales:
            return rows
        scale = self._where[self._scales[name]].read(self._scales[name])
        made = scaled(name, rows, scale, self.entry(name).shape, start)
        check_finite(name, made, self._where[name].path.name)
        return made

    def entry(self, name: str) -> TensorEntry:
        """Where a tensor lies and what it is."""
        return self._where[name].tensors[name]

    def file(self, name: str) -> SafetensorsFile:
        """The file that holds a tensor."""
        return self._where[name]

    def close(self) -> None:
        """Close every file."""
        for file in self.files:
            file.close()

    def _open(self) -> None:
        index = self.folder / _INDEX
        if index.is_file():
            self._open_shards(index)
        elif (self.folder / _SINGLE).is_file():
            self._add(SafetensorsFile(self.folder / _SINGLE))
        else:
            self._refuse()

    def _add(self, file: SafetensorsFile) -> None:
        self.files.append(file)
        for name in file.tensors:
            if name in self._where:
                raise CheckpointError(f"tensor {name!r} is in both {self._where[name].path.name} and {file.path.name}")
            self._where[name] = file

    def _open_shards(self, index: Path) -> None:
        weight_map = _weight_map(index)
        for shard in sorted(set(weight_map.values())):
            path = self.folder / shard
            if not path.is_file():
                count = sum(value == shard for value in weight_map.values())
                raise CheckpointError(
                    f"{self.folder}: shard {shard} is missing; {_INDEX} puts {count} tensors in it",
                    hint="The download is incomplete: fetch that file again.",
                )
            self._add(SafetensorsFile(path))
        for name, shard in weight_map.items():
            if name not in self._where or self._where[name].path.name != shard:
                raise CheckpointError(f"{index}: tensor {name!r} is said to be in {shard}, which does not hold it")

    def _refuse(self) -> None:
        for name in (_INDEX, _SINGLE):
            if os.path.lexists(self.folder / name):
                raise CheckpointError(
                    f"{self.folder}: {name} is not a file that can be read (a link whose target is gone, a directory or a pipe)",
                    hint="Fetch that file again.",
                )
        others = sorted(p.name for p in self.folder.glob("*.safetensors"))
        if others:
            raise CheckpointError(
                f"{self.folder}: neither {_SINGLE} nor {_INDEX} is there, only {', '.join(others[:5])}",
                hint=f"Rename the single file to {_SINGLE}, or fetch the index that names the shards.",
            )
        pickles = sorted(p.name for p in (*self.folder.glob("*.bin"), *self.folder.glob("*.pt"), *self.folder.glob("*.pth")))
        if pickles:
            raise CheckpointError(
                f"{self.folder}: the weights are only there as pickle files ({', '.join(pickles[:3])}), which can run code when loaded",
                hint="Convert them once, if you trust them: AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(NEW_DIR).",
            )
        raise CheckpointError(f"{self.folder}: no weights; expected {_SINGLE} or {_INDEX} with its shards")


def _weight_map(index: Path) -> dict[str, str]:
    try:
        content: Any = json.loads(index.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{index}: cannot be read as JSON: {error}") from None
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(v, str) for v in weight_map.values()):
        raise CheckpointError(f"{index}: needs a weight_map from tensor names to shard files")
    for shard in set(weight_map.values()):
        if Path(shard).name != shard or shard in ("", ".", ".."):
            raise CheckpointError(f"{index}: shard name {shard!r} is not a plain file name")
    return weight_map
