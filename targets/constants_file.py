"""A small plan's constants as one safetensors file: of plans that are made to run an op or a kernel by itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from mixplan.runtime.dtypes import DType

__all__ = ["write_constants"]


def write_constants(path: Path, arrays: Mapping[str, tuple[NDArray[Any], DType]]) -> None:
    """Write arrays one after the other, contiguous, bf16 as uint16 bit patterns. No file where there are none."""
    header: dict[str, Any] = {}
    offset = 0
    for name, (array, dtype) in arrays.items():
        header[name] = {"dtype": dtype.safetensors, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    if arrays:
        text = json.dumps(header).encode()
        text += b" " * (-(len(text) + 8) % 64)
        path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(array.tobytes() for array, _ in arrays.values()))
