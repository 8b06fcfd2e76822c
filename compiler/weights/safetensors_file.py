"""One safetensors file, read with `pread`: header checked to the last byte, tensors read one at a time as float32.

A mapped file counts into the resident set as it is read; `pread` does not, so compiling a model larger than memory stays small.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixplan.compiler.weights.check import check_finite
from mixplan.runtime.dtypes import bf16_to_f32
from mixplan.runtime.errors import CheckpointError
from mixplan.runtime.float8 import decode

__all__ = ["FLOATS", "SafetensorsFile", "TensorEntry"]

# Element sizes in bytes of every dtype that the format knows.
_SIZES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip
_NUMPY = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "F8_E4M3": "u1",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U8": "u1",
    "BOOL": "?",
}
FLOATS = frozenset({"F64", "F32", "F16", "BF16", "F8_E4M3"})
_WIDENED: dict[str, Callable[[NDArray[Any]], NDArray[np.float32]]] = {"BF16": bf16_to_f32, "F8_E4M3": decode}
# The format's own cap on the header.
_MAX_HEADER = 100_000_000
_BLOCK = 16 << 20


@dataclass(frozen=True)
class TensorEntry:
    """A tensor's place: `offset` is from the start of the file, sizes in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class SafetensorsFile:
    """An open safetensors file; `tensors` by name. CheckpointError names the file and what is wrong with it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be opened: {error.strerror}") from None
        try:
            self.tensors = self._read_header()
        except BaseException:
            os.close(self._fd)
            raise

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def read(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Rows [start, stop) of a tensor, floats as float32 and integers as they are; CheckpointError on NaN, Inf or a short file."""
        entry = self.tensors[name]
        shape = entry.shape
        offset, nbytes = entry.offset, entry.nbytes
        if shape and (start, stop) != (0, None):
            stop = shape[0] if stop is None else min(stop, shape[0])
            row = nbytes // shape[0] if shape[0] else 0
            offset, nbytes, shape = offset + start * row, max(stop - start, 0) * row, (max(stop - start, 0), *shape[1:])
        stored = np.dtype(_NUMPY[entry.dtype])
        out = np.empty(math.prod(shape), dtype=np.float32 if entry.dtype in FLOATS else stored)
        for at in range(0, nbytes, _BLOCK):
            block = self._pread(entry, offset + at, min(_BLOCK, nbytes - at)).view(stored)
            first = at // stored.itemsize
            widen = _WIDENED.get(entry.dtype)
            out[first : first + len(block)] = block if widen is None else widen(block)
        if entry.dtype in FLOATS:
            check_finite(name, out, self.path.name)
        return out.reshape(shape)

    def _pread(self, entry: TensorEntry, offset: int, nbytes: int) -> NDArray[np.uint8]:
        block = np.empty(nbytes, dtype=np.uint8)
        done = 0
        while done < nbytes:
            got = os.preadv(self._fd, [block[done:].data], offset + done)
            if got == 0:
                raise CheckpointError(f"{self.path}: the file ended inside tensor {entry.name!r}; was it changed while being read?")
            done += got
        return block

    def _read_header(self) -> dict[str, TensorEntry]:
        size = os.fstat(self._fd).st_size
        hint = "The file is truncated or not a safetensors file: download or save it again."
        if size < 8:
            raise CheckpointError(f"{self.path}: {size} bytes, too short for a safetensors header (8 bytes and more)", hint=hint)
        length = int.from_bytes(os.pread(self._fd, 8, 0), "little")
        if length > _MAX_HEADER or 8 + length > size:
            raise CheckpointError(
                f"{self.path}: the header is said to take {length} bytes, but the file has {size} (cap {_MAX_HEADER})", hint=hint
            )
        try:
            header = json.loads(os.pread(self._fd, length, 8).decode("utf-8"), object_pairs_hook=_unique)
        except (UnicodeDecodeError, ValueError, RecursionError) as error:
            raise CheckpointError(f"{self.path}: the header is not valid JSON: {error}", hint=hint) from None
        if not isinstance(header, dict):
            raise CheckpointError(f"{self.path}: the header is not a JSON object", hint=hint)
        data = 8 + length
        entries = [self._entry(name, value, data) for name, value in header.items() if name != "__metadata__"]
        end = data
        for entry in sorted(entries, key=lambda e: (e.offset, e.nbytes)):
            if entry.offset != end:
                what = "overlaps another tensor" if entry.offset < end else f"leaves {entry.offset - end} bytes unused before it"
                raise CheckpointError(f"{self.path}: tensor {entry.name!r} at offset {entry.offset - data} {what}", hint=hint)
            end += entry.nbytes
        if end != size:
            what = f"{end - size} bytes are missing at its end" if end > size else f"{size - end} bytes follow the last tensor"
            raise CheckpointError(f"{self.path}: the file has {size} bytes, but its header describes {end}: {what}", hint=hint)
        return {entry.name: entry for entry in entries}

    def _entry(self, name: str, value: Any, data: int) -> TensorEntry:
        def bad(what: str) -> CheckpointError:
            return CheckpointError(f"{self.path}: header entry of tensor {name!r}: {what}")

        if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
            raise bad("needs exactly dtype, shape and data_offsets")
        dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
        if not isinstance(dtype, str) or dtype not in _SIZES:
            raise bad(f"unknown dtype {dtype!r}; known: {', '.join(_SIZES)}")
        if not isinstance(shape, list) or not all(type(n) is int and 0 <= n < 1 << 48 for n in shape):
            raise bad(f"shape {shape!r} is not a list of sizes")
        if not isinstance(offsets, list) or len(offsets) != 2 or not all(type(n) is int and 0 <= n < 1 << 62 for n in offsets):
            raise bad(f"data_offsets {offsets!r} are not two offsets")
        nbytes = math.prod(shape) * _SIZES[dtype]
        if offsets[1] - offsets[0] != nbytes:
            raise bad(f"data_offsets {offsets} span {offsets[1] - offsets[0]} bytes, but {dtype} {shape} takes {nbytes}")
        return TensorEntry(name, dtype, tuple(shape), data + offsets[0], nbytes)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"key {key!r} appears twice")
        found[key] = value
    return found
