"""Front ends: from a checkpoint on disk or a module in memory to a captured graph."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixplan.compiler.frontends.base import Captured, Checkpoint, Source
from mixplan.runtime.errors import CheckpointError

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Captured", "Checkpoint", "Source", "open_checkpoint"]


def open_checkpoint(source: str | Path | nn.Module, *, example_inputs: tuple[Any, ...] | None = None) -> Checkpoint:
    """Open a Hugging Face directory, a GGUF file, or an nn.Module in memory.

    `example_inputs` is for modules that are not transformers models. CheckpointError where nothing can be made of `source`.
    """
    if not isinstance(source, str | Path):
        from mixplan.compiler.frontends.module import ModuleCheckpoint

        return ModuleCheckpoint(source, example_inputs)
    path = Path(source).expanduser()
    if path.is_dir():
        from mixplan.compiler.frontends.hf import HfCheckpoint

        return HfCheckpoint(path)
    if not path.exists():
        raise CheckpointError(
            f"{path}: no such file or directory", hint="Give a Hugging Face model directory (config.json and safetensors) or a .gguf file."
        )
    with path.open("rb") as file:
        magic = file.read(4)
    if magic == b"GGUF" or path.suffix == ".gguf":
        from mixplan.compiler.frontends.gguf import GgufCheckpoint

        return GgufCheckpoint(path)
    raise CheckpointError(
        f"{path}: neither a model directory nor a GGUF file (it starts with {magic!r})",
        hint="For safetensors, give the directory that holds config.json, not the file.",
    )
