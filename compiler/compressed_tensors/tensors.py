"""A quantized layer's tensors as compressed-tensors stores them: the plan's own codes, scales and zero points, laid out anew."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mixplan.compiler.compressed_tensors.schemes import FLOAT_QUANTIZED, INT_QUANTIZED, NAIVE_QUANTIZED, format_name
from mixplan.runtime.dtypes import DType
from mixplan.runtime.formats import WeightFormat, round_up
from mixplan.runtime.packing import Quantized

__all__ = ["layer_tensors", "pack_int32"]

_WORD = 32
# Elements whose bits are spread out at a time.
_SPREAD = 1 << 22


def pack_int32(codes: NDArray[np.uint8], bits: int) -> NDArray[np.int32]:
    """Codes [n, K] as int32 [n, ceil(K * bits / 32)]: a row is one string of bits, the lowest bit of the first code first."""
    n, columns = codes.shape
    words = -(-columns * bits // _WORD)
    out = np.empty((n, words), np.int32)
    step = max(_SPREAD // max(columns, 1), 1)
    for start in range(0, n, step):
        part = codes[start : start + step]
        spread = np.unpackbits(part[:, :, None], axis=2, count=bits, bitorder="little").reshape(len(part), columns * bits)
        spread = np.pad(spread, ((0, 0), (0, round_up(columns * bits, _WORD) - columns * bits)))
        out[start : start + step] = np.packbits(spread, axis=1, bitorder="little").view("<i4")
    return out


def layer_tensors(fmt: WeightFormat, rounded_input: bool, rows: Quantized, *, wide_scales: bool) -> dict[str, torch.Tensor]:
    """The tensors of a layer by their names in its module.

    weight_packed i32 with weight_shape, or weight i8 or e4m3 [N, K]; weight_scale [N, G] in f16, or f32 (per row, and two-level scales as
    their products); weight_zero_point where asymmetric, packed along the rows. wide_scales: f16 scales in f32 too, since the library
    multiplies in the dtype of the scales.
    """
    scales: NDArray[Any] = rows.scales.astype(np.float16 if fmt.scale_dtype is DType.f16 and not wide_scales else np.float32)
    out = {"weight_scale": torch.from_numpy(np.ascontiguousarray(scales))}
    if format_name(fmt, rounded_input) in (FLOAT_QUANTIZED, NAIVE_QUANTIZED):
        return {"weight": torch.from_numpy(rows.codes).view(torch.float8_e4m3fn), **out}
    if format_name(fmt, rounded_input) == INT_QUANTIZED:
        signed = (rows.codes.astype(np.int16) - fmt.zero_point).astype(np.int8)
        return {"weight": torch.from_numpy(signed), **out}
    out["weight_packed"] = torch.from_numpy(pack_int32(rows.codes, fmt.bits))
    out["weight_shape"] = torch.tensor(rows.codes.shape, dtype=torch.int64)
    if not fmt.symmetric:
        assert rows.zeros is not None
        packed = pack_int32(np.ascontiguousarray(rows.zeros.T), fmt.bits)
        out["weight_zero_point"] = torch.from_numpy(np.ascontiguousarray(packed.T))
    return out
