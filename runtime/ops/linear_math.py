"""What the references of linear ops share: products with packed weights, a stretch of rows at a time, so that memory stays small."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixplan.runtime.dtypes import bf16_to_f32, f32_to_bf16
from mixplan.runtime.errors import PlanError
from mixplan.runtime.float8 import round_rows
from mixplan.runtime.formats import LANES, WeightFormat
from mixplan.runtime.ops.define import CheckedAttrs
from mixplan.runtime.packing import Packed, code_values, slice_blocks, unpack, unpack_codes

__all__ = ["ACTIVATIONS", "activate_dtype", "check_activation_dtype", "product", "quantized_product"]

ACTIVATIONS = ("f32", "bf16", "e4m3")
"""What the input of a product with float activations may be rounded to."""

_BLOCKS = 256  # blocks of 16 rows that are unpacked at once
_EXACT_COLUMNS = 512  # 512 * 255 * 127 < 2**24: so many products of u8 and i8 sum exactly in float32


def check_activation_dtype(op: str, attrs: CheckedAttrs) -> None:
    """Raise PlanError unless the activation dtype is one of ACTIVATIONS."""
    if attrs["activation_dtype"] not in ACTIVATIONS:
        raise PlanError(f"Op {op}: activation_dtype {attrs['activation_dtype']!r} is not known; allowed: {', '.join(ACTIVATIONS)}.")


def activate_dtype(x: NDArray[np.float32], dtype: str) -> NDArray[np.float32]:
    """x [..., K] in f32, rounded to the activation dtype: by bf16 each number for itself, by e4m3 each row with a scale of its own."""
    if dtype == "e4m3":
        return round_rows(x)
    return bf16_to_f32(f32_to_bf16(x)) if dtype == "bf16" else x


def _stretches(packed: Packed) -> Iterator[tuple[int, Packed]]:
    """(first row, blocks) of each stretch."""
    count = packed["weight"].shape[0]
    for start in range(0, count, _BLOCKS):
        yield start * LANES, slice_blocks(packed, start, min(start + _BLOCKS, count))


def product(fmt: WeightFormat, packed: Packed, x: NDArray[np.float32], rows: int) -> NDArray[np.float32]:
    """x [..., K] times the transposed weight [rows, K], f32 [..., rows]."""
    columns = x.shape[-1]
    flat = x.reshape(x.size // columns, columns)
    out = np.empty((len(flat), rows), np.float32)
    with np.errstate(all="ignore"):
        for first, blocks in _stretches(packed):
            count = min(blocks["weight"].shape[0] * LANES, rows - first)
            out[:, first : first + count] = flat @ unpack(fmt, blocks, count, columns).T
    return out.reshape(*x.shape[:-1], rows)


def quantized_product(
    fmt: WeightFormat, packed: Packed, q: NDArray[np.int8], scales: NDArray[np.float32], sums: NDArray[np.float32], rows: int
) -> NDArray[np.float32]:
    """Integer product, f32 [..., rows]: y[n] = sum over groups g of ws[n,g] * (scales[g] * dot(codes[n], q)_g - zero[n,g] * sums[g]).

    Codes of nonuniform formats are their codebook's entries, with zero 0; a minimum m adds m[n,g] * sums[g]. q i8 [..., Kp], scales and
    sums f32 [..., G]. The dots are exact integers; the rest is float64, rounded once.
    """
    groups = scales.shape[-1]
    count = scales.size // groups
    flat = q.reshape(count, groups, q.shape[-1] // groups)
    scale, total = (a.reshape(count, groups).astype(np.float64) for a in (scales, sums))
    out = np.empty((count, rows), np.float32)
    with np.errstate(all="ignore"):
        for first, blocks in _stretches(packed):
            weight = unpack_codes(fmt, blocks)
            codes = code_values(fmt, weight.codes).reshape(weight.codes.shape[0], groups, -1)
            y = np.zeros((count, codes.shape[0]))
            for g in range(groups):
                term = scale[:, g, None] * _exact_dot(flat[:, g], codes[:, g])
                if weight.zeros is not None and not fmt.has_minimum:
                    term -= total[:, g, None] * weight.zeros[:, g]
                y += term * weight.scales[:, g].astype(np.float64)
                if weight.zeros is not None and fmt.has_minimum:
                    y += total[:, g, None] * weight.zeros[:, g].astype(np.float64)
            kept = min(codes.shape[0], rows - first)
            out[:, first : first + kept] = y[:, :kept]
    return out.reshape(*q.shape[:-1], rows)


def _exact_dot(a: NDArray[np.int8], b: NDArray[Any]) -> NDArray[np.int64]:
    """a [M, K] times transposed b [N, K] in exact integers, by float32 products short enough to be exact."""
    out = np.zeros((a.shape[0], b.shape[0]), np.int64)
    for start in range(0, a.shape[1], _EXACT_COLUMNS):
        stop = start + _EXACT_COLUMNS
        out += (a[:, start:stop].astype(np.float32) @ b[:, start:stop].astype(np.float32).T).astype(np.int64)
    return out
