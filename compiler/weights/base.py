"""What every weight source offers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from mixplan.compiler.weights.gguf_blocks import Blocks

__all__ = ["BlockSource", "Places", "WeightSource"]


class WeightSource(Protocol):
    """Weights by the module's parameter names. Reads are lazy: nothing is kept after a call, and no file is mapped into memory.

    Shapes are the module's. `read` and `read_rows` give float32 (integers as they are) and raise CheckpointError on NaN or Inf.
    """

    def names(self) -> list[str]:
        """All parameter names, tied ones under one name only."""

    def shape(self, name: str) -> tuple[int, ...]:
        """The tensor's shape."""

    def dtype(self, name: str) -> str:
        """The stored element type, in safetensors' spelling (F32, F16, BF16, ...) or the GGUF type's name."""

    def read(self, name: str) -> NDArray[np.float32]:
        """The whole tensor."""

    def read_rows(self, name: str, start: int, stop: int) -> NDArray[np.float32]:
        """Rows [start, stop) of the first axis."""

    def close(self) -> None:
        """Close the files."""


@dataclass(frozen=True)
class Places:
    """Which line of the file each line of a tensor is. ids: the tensor's shape, but for size 1 along `axis`, the axis that lines lie on."""

    ids: NDArray[np.int64]
    axis: int


@runtime_checkable
class BlockSource(Protocol):
    """What a weight source offers as well, where the file holds quantized blocks that a plan can take over."""

    def types(self, name: str) -> tuple[str, ...]:
        """The GGUF types of the stored tensors that make a parameter."""

    def places(self, name: str) -> Places | None:
        """Where its lines are among those of these tensors, counted one tensor after the other; None where numbers are changed."""

    def blocks(self, name: str, ids: NDArray[np.int64]) -> list[tuple[NDArray[np.int64], Blocks | None]]:
        """The blocks of lines [n], as (which of the n, blocks) for each stored tensor. None for a type that has none (gguf_blocks.py)."""
