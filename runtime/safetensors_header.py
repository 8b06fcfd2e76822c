"""Reading a safetensors header without trusting it.

A file is 8 bytes of little-endian header length, the header (JSON, padded with spaces), then the tensors' bytes, without gaps or overlaps.
"""

from __future__ import annotations

from math import prod

import msgspec

from mixplan.runtime.dtypes import DType
from mixplan.runtime.errors import PlanError

__all__ = ["MAX_HEADER_BYTES", "Header", "HeaderTensor", "parse_header"]

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""

_BY_NAME = {dtype.safetensors: dtype for dtype in DType}


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class HeaderTensor(msgspec.Struct, frozen=True):
    """One tensor: `nbytes` from `offset` in the data section."""

    dtype: DType
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class Header(msgspec.Struct, frozen=True):
    """`data_start` is where the data section begins in the file."""

    data_start: int
    tensors: dict[str, HeaderTensor]


_RAW_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ENTRY_DECODER = msgspec.json.Decoder(_Entry)


def parse_header(prefix: bytes | memoryview, header: bytes | memoryview, size: int, *, source: str) -> Header:
    """Check the header of a file of `size` bytes.

    prefix: the first 8 bytes. header: the bytes after them, at least as many as the prefix announces if the file has them. PlanError says
    what is wrong and names `source`.
    """
    if len(prefix) < 8:
        raise PlanError(f"{source} is truncated: {size} bytes, too few for a safetensors file.")
    length = int.from_bytes(bytes(prefix[:8]), "little")
    if length > MAX_HEADER_BYTES or 8 + length > size or len(header) < length:
        raise PlanError(f"{source} is corrupt: it announces a header of {length} bytes in a file of {size}.")
    data_size = size - 8 - length
    try:
        raw = _RAW_DECODER.decode(header[:length])
        raw.pop("__metadata__", None)
        entries = {key: _ENTRY_DECODER.decode(entry) for key, entry in raw.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PlanError(f"{source} has a corrupt safetensors header: {error}.") from None
    tensors = {key: _tensor(key, entry, source) for key, entry in entries.items()}
    end = 0
    for key, tensor in sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].nbytes)):
        if tensor.offset != end:
            raise PlanError(f"{source}: tensor {key!r} begins at {tensor.offset}, but the one before it ends at {end}.")
        end += tensor.nbytes
    if end != data_size:
        raise PlanError(f"{source} is truncated or corrupt: its tensors take {end} bytes, the file holds {data_size} bytes of data.")
    return Header(data_start=8 + length, tensors=tensors)


def _tensor(key: str, entry: _Entry, source: str) -> HeaderTensor:
    dtype = _BY_NAME.get(entry.dtype)
    if dtype is None:
        raise PlanError(f"{source}: tensor {key!r} has dtype {entry.dtype!r}; allowed are {', '.join(sorted(_BY_NAME))}.")
    begin, stop = entry.data_offsets
    if min(entry.shape, default=0) < 0 or not 0 <= begin <= stop:
        raise PlanError(f"{source}: tensor {key!r} has shape {list(entry.shape)} at [{begin}, {stop}), which cannot be.")
    nbytes = prod(entry.shape) * dtype.itemsize
    if nbytes != stop - begin:
        raise PlanError(
            f"{source}: tensor {key!r} of shape {list(entry.shape)} and dtype {entry.dtype} takes {nbytes} bytes, not {stop - begin}."
        )
    return HeaderTensor(dtype=dtype, shape=entry.shape, offset=begin, nbytes=nbytes)
