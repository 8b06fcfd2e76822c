"""Packed weights: from rows to the byte layout that every kernel reads, and back.

Sixteen output rows ("lanes") form a block; blocks stand one after another on the first axis. Packing rows [16i, 16j) gives exactly
blocks [i, j), so a caller streams a large weight by chunks of whole blocks and appends the bytes. A weight [N, K] has B = ceil(N / 16)
blocks:

| array | dtype | shape | holds |
|---|---|---|---|
| weight, f32  | f32  | [B, K, 16]          | w[16b + lane, k] |
| weight, bf16 | bf16 | [B, Kp/2, 16, 2]    | w[16b + lane, 2c + j] |
| weight, i8 and e4m3 | u8 | [B, Kp/4, 16, 4] | code[16b + lane, 4c + j] |
| weight, 2 to 6 bits | u8 | [B, Kp/32 * bits, 16, 4] | planes of the code's bits, see `planes.py` |
| scales       | f16 or f32 | [B, G, 16]    | scale[16b + lane, g] |
| scales, two-level | i8 | [B, 2 + G, 16]   | low and high byte of row[16b + lane], a bf16; then byte[16b + lane, g] |
| zeros        | u8 or f16 | [B, G, 16]     | zero point or minimum, only where asymmetric |

Kp is `WeightFormat.padded_columns(K)`, G `WeightFormat.groups(K)`. Padding rows dequantize to 0, having scale 0 (and minimum 0). What
padding columns dequantize to is 0 where a code can stand for it, else anything finite: activations are 0 there. bf16 is held in numpy as
uint16 bit patterns. For 4 bits the planes come to: code[.., 8c + j] in the low nibble of row c, code[.., 8c + 4 + j] in the high one.

A gated weight alternates gate and up blocks (`interleave_gated`); experts follow one another on the first axis (`concat_experts`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mixplan.runtime.codebooks import CODEBOOKS
from mixplan.runtime.dtypes import DType, bf16_to_f32, f32_to_bf16
from mixplan.runtime.errors import InternalError
from mixplan.runtime.float8 import decode
from mixplan.runtime.formats import LANES, UNIT, WeightFormat, ceil_div, round_up
from mixplan.runtime.planes import join_planes, split_planes
from mixplan.runtime.two_level import join_scales, split_scales

__all__ = [
    "Packed",
    "Quantized",
    "code_values",
    "concat_experts",
    "dequantize",
    "interleave_gated",
    "pack",
    "packed_layout",
    "quantize_act",
    "slice_blocks",
    "split_gated",
    "unpack",
    "unpack_codes",
    "unpack_rows",
]

Packed: TypeAlias = dict[str, NDArray[Any]]
"""Arrays of one packed weight by role: "weight", and where the format has them "scales" and "zeros"."""


@dataclass(frozen=True)
class Quantized:
    """Rows of a quantized weight: codes u8 [n, K], scales [n, G], zeros [n, G] (u8, or f16 or f32 minima; None where symmetric).

    Two-level scales are given as f32 that are exactly a bf16 of the row times whole numbers from -127 to 127; packing finds both again.
    """

    codes: NDArray[np.uint8]
    scales: NDArray[Any]
    zeros: NDArray[Any] | None = None


def packed_layout(fmt: WeightFormat, rows: int, columns: int, copies: int = 1) -> dict[str, tuple[DType, tuple[int, ...]]]:
    """Dtype and shape of each packed array of a weight [rows, columns], by role.

    `copies` counts equal weights in one tensor, each padded to 16 rows on its own: 2 for a gated weight, the number of experts for grouped.
    """
    blocks = copies * ceil_div(rows, LANES)
    width = fmt.padded_columns(columns)
    if not fmt.quantized:
        shape = (blocks, width, LANES) if fmt.bits == 32 else (blocks, width // 2, LANES, 2)
        return {"weight": (DType.f32 if fmt.bits == 32 else DType.bf16, shape)}
    groups = fmt.groups(columns)
    layout = {
        "weight": (DType.u8, (blocks, width // UNIT * fmt.bits, LANES, 4)),
        "scales": (fmt.scale_dtype, (blocks, groups + 2 if fmt.two_level else groups, LANES)),
    }
    if not fmt.symmetric:
        layout["zeros"] = (fmt.zero_dtype, (blocks, groups, LANES))
    return layout


def pack(fmt: WeightFormat, rows: NDArray[np.float32] | Quantized) -> Packed:
    """Pack rows (f32 [n, K] for f32 and bf16, else Quantized) into ceil(n / 16) blocks.

    Pads n to whole blocks, so every chunk of a streamed weight but the last must be a multiple of 16 rows.
    """
    if fmt.quantized != isinstance(rows, Quantized):
        raise InternalError(
            f"Packing {fmt.name} got {type(rows).__name__}; formats of 8 bits and fewer take Quantized, f32 and bf16 take an f32 array."
        )
    if isinstance(rows, Quantized):
        return _pack_quantized(fmt, rows)
    n, k = rows.shape
    blocks, width = ceil_div(n, LANES), fmt.padded_columns(k)
    if fmt.bits == 32:
        return {"weight": _lanes_last(_padded(np.asarray(rows, np.float32), blocks * LANES, width), 1)[..., 0]}
    return {"weight": _lanes_last(_padded(f32_to_bf16(rows), blocks * LANES, width), 2)}


def _pack_quantized(fmt: WeightFormat, rows: Quantized) -> Packed:
    n, k = rows.codes.shape
    groups = fmt.groups(k)
    if rows.scales.shape != (n, groups) or (rows.zeros is None) != fmt.symmetric:
        zeros = "no zeros" if rows.zeros is None else f"zeros {rows.zeros.shape}"
        raise InternalError(f"Packing {fmt} codes {rows.codes.shape} got scales {rows.scales.shape} and {zeros}; needs [{n}, {groups}].")
    padded, width = round_up(n, LANES), fmt.padded_columns(k)
    codes = _padded(rows.codes, padded, width, fill=fmt.zero_point)
    if rows.zeros is not None and width > k:
        codes[:n, k:] = 0 if fmt.has_minimum else rows.zeros[:, -1:]
    planes = split_planes(codes, fmt.bits)
    out: Packed = {"weight": _lanes_last(planes.reshape(padded, -1), 4)}
    scales = split_scales(rows.scales) if fmt.two_level else rows.scales.astype(fmt.scale_dtype.numpy)
    out["scales"] = _lanes_last(_padded(scales, padded, scales.shape[1]), 1)[..., 0]
    if rows.zeros is not None:
        stored, fill = rows.zeros.astype(fmt.zero_dtype.numpy), 0 if fmt.has_minimum else fmt.zero_point
        out["zeros"] = _lanes_last(_padded(stored, padded, groups, fill=fill), 1)[..., 0]
    return out


def _padded(x: NDArray[Any], rows: int, columns: int, fill: int = 0) -> NDArray[Any]:
    """A copy of x [n, k], or x itself where it already has the size, extended to [rows, columns]."""
    if x.shape == (rows, columns):
        return x
    out = np.full((rows, columns), fill, x.dtype)
    out[: x.shape[0], : x.shape[1]] = x
    return out


def _lanes_last(x: NDArray[Any], unit: int) -> NDArray[Any]:
    """[16B, C * unit] -> contiguous [B, C, 16, unit]."""
    rows, columns = x.shape
    return np.ascontiguousarray(x.reshape(rows // LANES, LANES, columns // unit, unit).transpose(0, 2, 1, 3))


def _rows_first(x: NDArray[Any]) -> NDArray[Any]:
    """[B, C, 16, unit] -> [16B, C * unit]."""
    blocks, columns, lanes, unit = x.shape
    return x.transpose(0, 2, 1, 3).reshape(blocks * lanes, columns * unit)


def unpack_codes(fmt: WeightFormat, packed: Mapping[str, NDArray[Any]]) -> Quantized:
    """The padded rows of a quantized weight: codes u8 [16B, Kp], scales f32 [16B, G], zeros [16B, G]: u8, or f32 minima.

    Zeros are filled in where symmetric; nonuniform formats have none.
    """
    codes = _rows_first(packed["weight"])
    codes = join_planes(codes.reshape(*codes.shape[:1], codes.shape[1] // 4, 4), fmt.bits)
    stored = _rows_first(packed["scales"][..., None])
    scales = join_scales(stored) if fmt.two_level else stored.astype(np.float32)
    if not fmt.symmetric:
        zeros = _rows_first(packed["zeros"][..., None])
        return Quantized(codes, scales, zeros.astype(np.float32) if fmt.has_minimum else zeros)
    return Quantized(codes, scales, None if fmt.nonuniform else np.full(scales.shape, fmt.zero_point, np.uint8))


def code_values(fmt: WeightFormat, codes: NDArray[np.uint8]) -> NDArray[Any]:
    """The numbers that a format's codes multiply with: the codes (u8), their codebook's entries (i8), or the floats of e4m3 (f32)."""
    if fmt.floating:
        return decode(codes)
    return CODEBOOKS[fmt.bits][codes] if fmt.nonuniform else codes


def dequantize(fmt: WeightFormat, rows: Quantized) -> NDArray[np.float32]:
    """scale * (code - zero), f32 [n, K], rounded once, as a difference of codes is a small integer; or scale * code + minimum."""
    n, k = rows.codes.shape
    zeros = rows.zeros
    if zeros is None and not fmt.nonuniform:
        zeros = np.full(rows.scales.shape, fmt.zero_point, np.uint8)
    out = code_values(fmt, rows.codes).astype(np.float32)
    group = fmt.group_size or k
    whole = k // group * group
    # Views into `out`: splitting one axis of an array never copies.
    parts = [(out[:, :whole].reshape(n, whole // group, group), slice(0, whole // group))]
    if k > whole:
        parts.append((out[:, None, whole:], slice(whole // group, None)))
    with np.errstate(over="ignore", invalid="ignore"):
        for part, groups in parts:
            if zeros is not None and not fmt.has_minimum:
                part -= zeros[:, groups, None].astype(np.float32)
            part *= rows.scales[:, groups, None].astype(np.float32)
            if zeros is not None and fmt.has_minimum:
                part += zeros[:, groups, None].astype(np.float32)
    return out


def unpack(fmt: WeightFormat, packed: Mapping[str, NDArray[Any]], rows: int, columns: int) -> NDArray[np.float32]:
    """The weight as f32 [rows, columns]."""
    if fmt.quantized:
        full = dequantize(fmt, unpack_codes(fmt, packed))
    elif fmt.bits == 32:
        full = _rows_first(packed["weight"][..., None])
    else:
        full = bf16_to_f32(_rows_first(packed["weight"]))
    return np.ascontiguousarray(full[:rows, :columns])


def unpack_rows(fmt: WeightFormat, packed: Mapping[str, NDArray[Any]], rows: NDArray[Any], columns: int) -> NDArray[np.float32]:
    """The given rows (any integers, shape [n]) as f32 [n, columns], without unpacking the others."""
    block, lane = np.divmod(rows, LANES)
    # Each wanted row becomes lane 0 of a block of its own, whose other lanes are dropped again.
    one = {role: array[block, :, lane][:, :, None] for role, array in packed.items()}
    return unpack(fmt, one, len(rows), columns)


def interleave_gated(gate: Packed, up: Packed) -> Packed:
    """Alternate the blocks of two packed weights of one shape: gate block 0, up block 0, gate block 1, ..."""
    return {role: np.stack([gate[role], up[role]], axis=1).reshape(2 * gate[role].shape[0], *gate[role].shape[1:]) for role in gate}


def split_gated(packed: Mapping[str, NDArray[Any]]) -> tuple[Packed, Packed]:
    """The gate and the up weight of an interleaved pair, as views."""
    return {role: a[0::2] for role, a in packed.items()}, {role: a[1::2] for role, a in packed.items()}


def concat_experts(experts: Iterable[Packed]) -> Packed:
    """Experts' packed weights, one after another on the first axis."""
    listed = list(experts)
    return {role: np.concatenate([e[role] for e in listed]) for role in listed[0]}


def slice_blocks(packed: Mapping[str, NDArray[Any]], start: int, stop: int) -> Packed:
    """Blocks [start, stop) as views: rows [16 * start, 16 * stop) of a linear; expert e has blocks [e * B, (e + 1) * B)."""
    return {role: a[start:stop] for role, a in packed.items()}


def quantize_act(x: NDArray[np.float32], group: int) -> tuple[NDArray[np.int8], NDArray[np.float32], NDArray[np.float32]]:
    """Quantize activations x [..., K] to int8, symmetric, with one scale for each row and group (group 0: for each row).

    Returns q i8 [..., Kp] (zeros in the padding; Kp = K up to a multiple of the group, or of 32), scales f32 [..., G] and
    sums f32 [..., G] = scale * sum(q). scale = absmax / 127, or 1 where absmax is below 2^-100; q = x * (1 / scale), half to even.
    """
    k = x.shape[-1]
    width = round_up(k, group or 32)
    padded = np.zeros((*x.shape[:-1], width), np.float32)
    padded[..., :k] = x
    grouped = padded.reshape(*x.shape[:-1], width // group if group else 1, group or width)
    with np.errstate(all="ignore"):
        largest = np.max(np.abs(grouped), axis=-1, initial=0.0)
        scales = np.where(largest < np.float32(2.0**-100), np.float32(1), largest / np.float32(127)).astype(np.float32)
        inverse = np.float32(1) / scales
        codes = np.nan_to_num(np.clip(np.rint(grouped * inverse[..., None]), -127, 127), copy=False).astype(np.int8)
        sums = (scales * codes.sum(axis=-1, dtype=np.int32).astype(np.float32)).astype(np.float32)
    return codes.reshape(padded.shape), scales, sums
