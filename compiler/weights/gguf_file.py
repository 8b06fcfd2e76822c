"""The GGUF container, read strictly: header and tensor table are parsed and checked in full before anything is used.

Layout (little-endian): magic "GGUF", u32 version, u64 tensor count, u64 key count; keys (string, u32 type, value); tensor table (string,
u32 dimensions, u64 each, u32 type, u64 offset); padding to the alignment; tensor data. Strings are u64 length and UTF-8 bytes.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from mixplan.runtime.errors import CheckpointError, UnsupportedError

__all__ = ["GgufFile", "GgufTensor"]

_T = TypeVar("_T")
_VERSIONS = (2, 3)
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4
_WINDOW = 1 << 20
_DOWNLOAD = "The file is damaged or only partly downloaded: download it again."


@dataclass(frozen=True)
class GgufTensor:
    """One entry of the tensor table. `shape` is in row-major order (GGUF stores it reversed), `offset` counts from the file's start."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    type_name: str
    offset: int
    nbytes: int


class _Cursor:
    """Reads forward through a file by pread, a window at a time; a read past the end is a CheckpointError."""

    def __init__(self, path: Path, handle: int, size: int) -> None:
        self.path, self.size, self.position = path, size, 0
        self._handle, self._window, self._start = handle, b"", 0

    def take(self, count: int, what: str) -> bytes:
        if count > self.size - self.position:
            raise CheckpointError(
                f"{self.path} is truncated: {what} at byte {self.position} needs {count} bytes, and the file ends at byte {self.size}.",
                hint=_DOWNLOAD,
            )
        at = self.position - self._start
        if at + count > len(self._window):
            self._window = os.pread(self._handle, max(count, _WINDOW), self.position)
            self._start, at = self.position, 0
        self.position += count
        return self._window[at : at + count]

    def scalar(self, code: str, what: str) -> Any:
        return struct.unpack(code, self.take(struct.calcsize(code), what))[0]

    def string(self, what: str) -> str:
        raw = self.take(self.scalar("<Q", f"the length of {what}"), what)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{self.path}: {what} before byte {self.position} is not UTF-8 ({error}).", hint=_DOWNLOAD) from error


class GgufFile:
    """An opened GGUF file: metadata, tensor table, and reads of tensor bytes. Errors name the file, the value seen and the remedy."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self._handle = os.open(self.path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be read: {error.strerror}.", hint="Check the path and its permissions.") from error
        try:
            self.size = os.fstat(self._handle).st_size
            self.metadata: dict[str, Any] = {}
            self.tensors: dict[str, GgufTensor] = {}
            # Byte ranges of the metadata entries and of the tensor table.
            self._spans: dict[str, tuple[int, int]] = {}
            self._table = (0, 0)
            self._parse(_Cursor(self.path, self._handle, self.size))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file; more than once does no harm."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    # -- metadata -----------------------------------------------------------------------------------------------------------------

    @property
    def architecture(self) -> str:
        """`general.architecture`, in llama.cpp's spelling."""
        name = self.string("general.architecture")
        if not name:
            raise CheckpointError(f"{self.path} has no general.architecture in its metadata.", hint="Convert the model to GGUF again.")
        return name

    def string(self, key: str) -> str | None:
        """A text value, None where the key is missing."""
        return self._typed(key, str, "a string")

    def integer(self, key: str) -> int | None:
        """A whole number, None where the key is missing."""
        return self._typed(key, int, "a whole number")

    def boolean(self, key: str) -> bool | None:
        """A truth value, None where the key is missing."""
        return self._typed(key, bool, "true or false")

    def strings(self, key: str) -> list[str]:
        """A list of texts, empty where the key is missing."""
        return self._list(key, str, "strings")

    def integers(self, key: str) -> list[int]:
        """A list of whole numbers, empty where the key is missing."""
        return self._list(key, int, "whole numbers")

    def floats(self, key: str) -> list[float]:
        """A list of numbers, empty where the key is missing."""
        return self._list(key, float, "numbers")

    def _typed(self, key: str, kind: type[_T], what: str) -> _T | None:
        value: _T | None = self.metadata.get(key)
        if value is not None and type(value) is not kind:
            raise CheckpointError(f"{self.path}: {key} is {value!r}, which is not {what}.", hint="Convert the model to GGUF again.")
        return value

    def _list(self, key: str, kind: type[_T], what: str) -> list[_T]:
        value: Any = self.metadata.get(key, [])
        if not isinstance(value, list) or (value and type(value[0]) is not kind):
            raise CheckpointError(f"{self.path}: {key} is not a list of {what}.", hint="Convert the model to GGUF again.")
        items: list[_T] = value
        return items

    # -- tensors ------------------------------------------------------------------------------------------------------------------

    def read_rows(self, tensor: GgufTensor, start: int, stop: int) -> NDArray[np.float32]:
        """Rows [start, stop) of the first axis, dequantized to float32."""
        from gguf import GGMLQuantizationType, dequantize

        rows = tensor.shape[0]
        row_bytes = tensor.nbytes // rows
        raw = self._pread(tensor, start * row_bytes, (stop - start) * row_bytes)
        kind = GGMLQuantizationType(tensor.type_id)
        # Blocks lie along the last axis; everything before it is rows to the dequantizer.
        lines = (stop - start) * prod(tensor.shape[1:-1]) if len(tensor.shape) > 1 else 1
        values = dequantize(raw.reshape(lines, -1) if lines else raw.reshape(0, row_bytes), kind)
        shape = (stop - start, *tensor.shape[1:])
        return np.ascontiguousarray(values, dtype=np.float32).reshape(shape)

    def read_lines(self, tensor: GgufTensor, start: int, stop: int) -> NDArray[np.uint8]:
        """Lines [start, stop) along the last axis as they are stored, u8 [stop - start, bytes of a line]."""
        line = tensor.nbytes // prod(tensor.shape[:-1])
        return self._pread(tensor, start * line, (stop - start) * line).reshape(stop - start, line)

    def _pread(self, tensor: GgufTensor, offset: int, count: int) -> NDArray[np.uint8]:
        buffer = np.empty(count, dtype=np.uint8)
        view = buffer.data
        done = 0
        while done < count:
            # One call reads 2 GiB at most.
            got = os.preadv(self._handle, [view[done : done + (1 << 30)]], tensor.offset + offset + done)
            if got <= 0:
                raise CheckpointError(f"{self.path} became shorter while it was read (tensor {tensor.name!r}).", hint=_DOWNLOAD)
            done += got
        return buffer

    def write_outline(self, path: Path, *, longest_list: int) -> None:
        """Write a GGUF file of the same metadata (but for lists longer than `longest_list`) and tensor table, its data a hole in the file.

        For a reader that wants the metadata only, and is slow on vocabularies.
        """
        kept = [key for key, value in self.metadata.items() if not (isinstance(value, list) and len(value) > longest_list)]
        spans = [*(self._spans[key] for key in kept), self._table]
        body = b"".join(os.pread(self._handle, stop - start, start) for start, stop in spans)
        header = struct.pack("<4sIQQ", b"GGUF", self.version, len(self.tensors), len(kept)) + body
        path.write_bytes(header)
        os.truncate(path, len(header) + self.size)

    # -- parsing ------------------------------------------------------------------------------------------------------------------

    def _parse(self, cursor: _Cursor) -> None:
        magic = cursor.take(4, "the magic number") if self.size >= 4 else b""
        if magic != b"GGUF":
            raise CheckpointError(f"{self.path} is no GGUF file: it begins with {magic!r} instead of b'GGUF'.", hint="Give a .gguf file.")
        version = cursor.scalar("<I", "the version")
        if version not in _VERSIONS:
            why = " (a big-endian file)" if version & 0xFFFF == 0 else ""
            raise CheckpointError(
                f"{self.path} is GGUF version {version}{why}; mixplan reads versions 2 and 3, little-endian.",
                hint="Convert the model again with a current llama.cpp.",
            )
        self.version: int = version
        tensor_count, key_count = cursor.scalar("<Q", "the tensor count"), cursor.scalar("<Q", "the key count")
        for name, count, least in (("tensors", tensor_count, 24), ("metadata keys", key_count, 13)):
            if count * least > self.size:
                raise CheckpointError(f"{self.path} claims {count} {name}, more than fit into its {self.size} bytes.", hint=_DOWNLOAD)
        for _ in range(key_count):
            begin = cursor.position
            key = cursor.string("a metadata key")
            if key in self.metadata:
                raise CheckpointError(f"{self.path} holds the metadata key {key!r} twice.", hint="Convert the model to GGUF again.")
            self.metadata[key] = self._value(cursor, cursor.scalar("<I", f"the type of {key}"), key)
            self._spans[key] = (begin, cursor.position)
        alignment = self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1) or alignment % 8:
            raise CheckpointError(
                f"{self.path}: general.alignment is {alignment!r}; it must be a power of two, 8 or more.",
                hint="Convert the model to GGUF again.",
            )
        begin = cursor.position
        entries = [self._entry(cursor) for _ in range(tensor_count)]
        self._table = (begin, cursor.position)
        start = -(-cursor.position // alignment) * alignment
        for entry in entries:
            self._add_tensor(*entry, start=start, alignment=alignment)
        self._check_overlap()

    def _value(self, cursor: _Cursor, kind: int, key: str) -> Any:
        if kind in _SCALARS:
            return cursor.scalar(_SCALARS[kind], key)
        if kind == _STRING:
            return cursor.string(key)
        if kind != _ARRAY:
            raise CheckpointError(f"{self.path}: the metadata key {key!r} has the unknown type {kind}.", hint=_DOWNLOAD)
        item, count = cursor.scalar("<I", f"the item type of {key}"), cursor.scalar("<Q", f"the length of {key}")
        if item == _STRING:
            return [cursor.string(f"an item of {key}") for _ in range(self._fits(cursor, count, 8, key))]
        if item not in _SCALARS:
            raise CheckpointError(f"{self.path}: the metadata list {key!r} has the unsupported item type {item}.", hint=_DOWNLOAD)
        code = _SCALARS[item]
        size = struct.calcsize(code)
        raw = cursor.take(self._fits(cursor, count, size, key) * size, key)
        return list(struct.unpack(f"<{count}{code[1]}", raw))

    def _fits(self, cursor: _Cursor, count: int, least: int, key: str) -> int:
        if count * least > self.size - cursor.position:
            raise CheckpointError(
                f"{self.path} is truncated: the list {key!r} claims {count} items, more than the file holds.", hint=_DOWNLOAD
            )
        return count

    def _entry(self, cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
        name = cursor.string("a tensor's name")
        dimensions = cursor.scalar("<I", f"the dimension count of {name}")
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise CheckpointError(
                f"{self.path}: tensor {name!r} has {dimensions} dimensions; 1 to {_MAX_DIMENSIONS} are allowed.", hint=_DOWNLOAD
            )
        shape = struct.unpack(f"<{dimensions}Q", cursor.take(8 * dimensions, f"the shape of {name}"))
        return name, tuple(reversed(shape)), cursor.scalar("<I", f"the type of {name}"), cursor.scalar("<Q", f"the offset of {name}")

    def _add_tensor(self, name: str, shape: tuple[int, ...], type_id: int, offset: int, *, start: int, alignment: int) -> None:
        if name in self.tensors:
            raise CheckpointError(f"{self.path} holds the tensor {name!r} twice.", hint="Convert the model to GGUF again.")
        if any(d == 0 for d in shape):
            raise CheckpointError(f"{self.path}: tensor {name!r} has the shape {list(shape)}; no dimension may be 0.", hint=_DOWNLOAD)
        type_name, nbytes = self._size_of(name, shape, type_id)
        if offset % alignment:
            raise CheckpointError(
                f"{self.path}: tensor {name!r} is at offset {offset}, which is not a multiple of the alignment {alignment}.", hint=_DOWNLOAD
            )
        if start + offset + nbytes > self.size:
            raise CheckpointError(
                f"{self.path} is truncated or corrupt: tensor {name!r} takes bytes {start + offset} to {start + offset + nbytes}, "
                f"and the file has {self.size}.",
                hint=_DOWNLOAD,
            )
        self.tensors[name] = GgufTensor(name, shape, type_id, type_name, start + offset, nbytes)

    def _size_of(self, name: str, shape: tuple[int, ...], type_id: int) -> tuple[str, int]:
        """The type's name and the tensor's size, for a type that can be turned into float32."""
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
        from gguf.quants import _type_traits

        plain = (GGMLQuantizationType.F32, GGMLQuantizationType.F16)
        try:
            kind = GGMLQuantizationType(type_id)
        except ValueError:
            kind = None
        if kind is None or (kind not in _type_traits and kind not in plain):
            known = ", ".join(sorted(k.name for k in (*plain, *_type_traits)))
            called = f"{type_id}" if kind is None else f"{kind.name} ({type_id})"
            raise UnsupportedError(
                f"{self.path}: tensor {name!r} has the quantization type {called}; mixplan reads {known}.",
                hint="Use a file that was quantized to one of these.",
            )
        block, block_bytes = GGML_QUANT_SIZES[kind]
        if shape[-1] % block:
            raise CheckpointError(
                f"{self.path}: tensor {name!r} of type {kind.name} has rows of {shape[-1]} elements, not a multiple of {block}.",
                hint=_DOWNLOAD,
            )
        return kind.name, prod(shape) // block * block_bytes

    def _check_overlap(self) -> None:
        ordered = sorted(self.tensors.values(), key=lambda t: t.offset)
        for before, after in pairwise(ordered):
            if before.offset + before.nbytes > after.offset:
                raise CheckpointError(
                    f"{self.path}: the tensors {before.name!r} and {after.name!r} overlap at byte {after.offset}.", hint=_DOWNLOAD
                )
