"""The blocks of a GGUF's quantized tensors, taken apart into codes, scales and minima.

A block is 32 elements with one scale d, and in some types a minimum m: `d * (code - middle)`, or `d * code + m` (m is -dmin * its own
number in K-quants, whose blocks of 256 have eight of these). Numbers are little-endian; low nibbles come before high ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mixplan.runtime.dtypes import DType
from mixplan.runtime.formats import WeightFormat
from mixplan.runtime.packing import Quantized

__all__ = ["BLOCK", "BLOCK_TYPES", "BlockType", "Blocks", "in_format", "split_blocks"]

BLOCK = 32
"""Elements that share a scale."""

_Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class BlockType:
    """bits: of a code. minimum: whether blocks have one. products: whether scale and minimum are products of two numbers, and need more
    bits than f16 has."""

    bits: int
    minimum: bool
    products: bool = False


BLOCK_TYPES = {
    "Q4_0": BlockType(4, False),
    "Q4_1": BlockType(4, True),
    "Q5_0": BlockType(5, False),
    "Q5_1": BlockType(5, True),
    "Q8_0": BlockType(8, False),
    "Q4_K": BlockType(4, True, products=True),
    "Q5_K": BlockType(5, True, products=True),
}
"""The types that have one scale for each 32 elements. Q2_K, Q3_K and Q6_K have one for each 16, the others code books of their own."""


@dataclass(frozen=True)
class Blocks:
    """Rows of a tensor: codes u8 [n, K] (the middle code is 0 where there are no minima), scales and minima f32 [n, K / 32]."""

    kind: BlockType
    codes: NDArray[np.uint8]
    scales: NDArray[np.float32]
    minima: NDArray[np.float32] | None


def split_blocks(type_name: str, raw: _Bytes) -> Blocks:
    """Rows of a tensor of one of BLOCK_TYPES, as the file has them: u8 [n, bytes of a row]."""
    kind = BLOCK_TYPES[type_name]
    if kind.products:
        return _split_k(kind, raw)
    rows = len(raw)
    head = 4 if kind.minimum else 2
    size = head + {4: 16, 5: 20, 8: 32}[kind.bits]
    blocks = raw.reshape(rows, -1, size)
    scales = _halves(blocks[..., :2])
    minima = _halves(blocks[..., 2:4]) if kind.minimum else None
    body = blocks[..., head:]
    if kind.bits == 8:
        codes = body ^ np.uint8(128)
    else:
        codes = _nibbles(body[..., -16:])
        if kind.bits == 5:
            codes |= np.unpackbits(body[..., :4], axis=-1, bitorder="little") << np.uint8(4)
    return Blocks(kind, np.ascontiguousarray(codes).reshape(rows, -1), scales, minima)


def _split_k(kind: BlockType, raw: _Bytes) -> Blocks:
    rows = len(raw)
    blocks = raw.reshape(rows, -1, 144 if kind.bits == 4 else 176)
    d, dmin, packed = _halves(blocks[..., :2]), _halves(blocks[..., 2:4]), blocks[..., 4:16]
    low, middle, high = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    # Six bits each: four whole, of the other four the upper two bits lie above those.
    scale = np.concatenate([low & 63, high & 15 | low >> 6 << 4], axis=-1)
    minimum = np.concatenate([middle & 63, high >> 4 | middle >> 6 << 4], axis=-1)
    # 32 bytes hold two blocks: one in the low nibbles, the next in the high ones.
    quarters = blocks[..., -128:].reshape(rows, -1, 4, 1, BLOCK)
    codes = np.concatenate([quarters & 15, quarters >> 4], axis=-2).reshape(rows, -1, 8, BLOCK)
    if kind.bits == 5:
        bits = blocks[..., None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None]
        codes = codes | (bits & 1) << 4
    scales = (d[..., None] * scale.astype(np.float32)).reshape(rows, -1)
    minima = -(dmin[..., None] * minimum.astype(np.float32)).reshape(rows, -1)
    return Blocks(kind, codes.reshape(rows, -1), scales, minima)


def _halves(raw: _Bytes) -> NDArray[np.float32]:
    """Two bytes on the last axis, which goes, as f16."""
    return np.ascontiguousarray(raw).view("<f2")[..., 0].astype(np.float32)


def _nibbles(raw: _Bytes) -> _Bytes:
    return np.concatenate([raw & 15, raw >> 4], axis=-1)


def in_format(blocks: Blocks, fmt: WeightFormat) -> tuple[Quantized, bool]:
    """The blocks in a format of as many bits or more, in groups of 32, with minima if they have any; and whether that changes no number."""
    scales, minima = blocks.scales, blocks.minima
    codes = blocks.codes
    middle = 1 << (blocks.kind.bits - 1)
    if fmt.has_minimum and minima is None:
        minima = -middle * scales
    if not fmt.has_minimum and fmt.zero_point != middle:
        codes = codes + np.uint8(fmt.zero_point - middle)
    stored, exact = _narrowed(scales, fmt.scale_dtype)
    if minima is None:
        return Quantized(codes, stored), exact
    least, as_exact = _narrowed(minima, fmt.zero_dtype)
    return Quantized(codes, stored, least), exact and as_exact


def _narrowed(values: NDArray[np.float32], dtype: DType) -> tuple[NDArray[np.generic], bool]:
    with np.errstate(over="ignore"):
        narrow = values.astype(dtype.numpy)
    return narrow, np.array_equal(narrow.astype(np.float32), values)
