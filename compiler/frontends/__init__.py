"""Front ends: from a checkpoint on disk or a module in memory to a captured graph."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixplan.compiler.frontends.base import Captured, Checkpoint, Source
from mixplan.runtime.errors import CheckpointError

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Captured", "Checkpoint", "Source", "open_checkpoint"]

_HINT = "Give a Hugging Face model directory (config.json and safetensors) or a .gguf file."


def open_checkpoint(source: str | Path | nn.Module, *, example_inputs: tuple[Any, ...] | None = None) -> Checkpoint:
    """Open a Hugging Face directory, a GGUF file, or an nn.Module in memory.

    `example_inputs` is for modules that are not transformers models. CheckpointError where nothing can be made of `source`.
    """
    if not isinstance(source, str | Path):
        from mixplan.compiler.frontends.module import ModuleCheckpoint

        return ModuleCheckpoint(source, example_inputs)
    path = Path(source).expanduser()
    try:
        folder, there = path.is_dir(), path.exists()
    except OSError as error:  # a name that no file can have, or a folder that may not be looked into
        raise CheckpointError(f"{path}: {error.strerror}", hint=_HINT) from None
    if folder:
        from mixplan.compiler.frontends.hf import HfCheckpoint

        return HfCheckpoint(path)
    if not there:
        raise CheckpointError(f"{path}: no such file or directory", hint=_HINT)
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}", hint=_HINT) from None
    if magic == b"GGUF" or path.suffix == ".gguf":
        from mixplan.compiler.frontends.gguf import GgufCheckpoint

        return GgufCheckpoint(path)
    raise CheckpointError(
        f"{path}: neither a model directory nor a GGUF file (it starts with {magic!r})",
        hint="For safetensors, give the directory that holds config.json, not the file.",
    )
