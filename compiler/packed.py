"""Constants as the bytes that a plan stores, a chunk at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mixplan.compiler.constants import Constants, Expr
from mixplan.compiler.lowering.context import expr_name
from mixplan.compiler.lowering.operands import PackedWeight
from mixplan.compiler.quantize import pack_rows
from mixplan.runtime.dtypes import DType
from mixplan.runtime.formats import LANES
from mixplan.runtime.packing import Packed, interleave_gated, pack

__all__ = ["Chunk", "chunks", "dense_array", "pack_chunk", "packed_arrays"]

# Small enough for a core's cache, over which packing makes some dozens of passes.
_CHUNK_ELEMENTS = 1 << 18


@dataclass(frozen=True)
class Chunk:
    """Rows [start, stop) of matrix `expert` (0 but for experts) of a packed weight; whole blocks but for a matrix's last rows."""

    weight: PackedWeight
    expert: int
    start: int
    stop: int


def chunks(weight: PackedWeight) -> Iterator[Chunk]:
    """The weight in order of its bytes, cut so that a chunk takes some tens of MB while it is being packed."""
    pieces = len(weight.pieces)
    step = max(_CHUNK_ELEMENTS // max(weight.columns * pieces, 1) // LANES, 1) * LANES
    for expert in range(weight.experts):
        for start in range(0, weight.rows, step):
            yield Chunk(weight, expert, start, min(start + step, weight.rows))


def pack_chunk(constants: Constants, chunk: Chunk) -> Packed:
    """The chunk's bytes by role."""
    weight = chunk.weight
    packed = [_pack_piece(constants, chunk, piece) for piece in weight.pieces]
    return interleave_gated(*packed) if weight.layout == "gated" else packed[0]


def _pack_piece(constants: Constants, chunk: Chunk, piece: Expr) -> Packed:
    fmt, name = chunk.weight.format, expr_name(piece, "weight")
    if chunk.weight.stored and constants.stored is not None and fmt.quantized:
        first = chunk.expert * chunk.weight.rows
        taken = constants.stored.read(piece, fmt, first + chunk.start, first + chunk.stop, name)
        if taken is not None:
            return pack(fmt, taken)
    return pack_rows(fmt, _rows(constants, chunk, piece), name, constants.inputs(piece))


def _rows(constants: Constants, chunk: Chunk, piece: Expr) -> torch.Tensor:
    if chunk.weight.layout == "grouped":
        return constants.matrix_rows(piece, chunk.expert, chunk.start, chunk.stop).float()
    return constants.rows(piece, chunk.start, chunk.stop).float()


def packed_arrays(constants: Constants, weight: PackedWeight) -> Packed:
    """The whole packed weight, for tests and small models."""
    parts = [pack_chunk(constants, chunk) for chunk in chunks(weight)]
    return {role: np.concatenate([part[role] for part in parts]) for role in parts[0]}


def dense_array(constants: Constants, expr: Expr, dtype: DType) -> NDArray[Any]:
    """A constant that is stored as it is."""
    value = constants.evaluate(expr).contiguous()
    if value.is_floating_point():
        value = value.float()
    return np.ascontiguousarray(value.numpy().astype(dtype.numpy).reshape(expr.shape))
