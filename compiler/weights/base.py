"""What every weight source offers."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["WeightSource"]


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
