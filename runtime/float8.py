"""8-bit floating-point numbers, e4m3fn of the OCP specification ("OCP 8-bit Floating Point Specification (OFP8)", 2023).

A code is a sign, four bits of exponent (bias 7) and three of mantissa: +-2^(e - 7) * (1 + m / 8), or +-2^-6 * m / 8 where e is 0. There are
no infinities: the largest number is 448 (0x7e), and 0x7f and 0xff are NaN. Rounding is to nearest, half to even, and saturates at 448, so
that only a NaN becomes one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["E4M3", "LARGEST", "decode", "encode", "quantize", "round_rows"]

LARGEST = 448.0
"""The largest number."""

_LEAST_NORMAL = np.float32(2.0**-6)
_LEAST_SCALED = np.float32(2.0**-100)


def _table() -> NDArray[np.float32]:
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    size = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    size[codes & 127 == 127] = np.nan
    return np.where(codes < 128, size, -size).astype(np.float32)


E4M3: NDArray[np.float32] = _table()
"""What each code stands for, f32 [256]."""


def decode(codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Codes of any shape as f32, exactly."""
    return np.asarray(E4M3[codes], np.float32)


def encode(x: NDArray[Any]) -> NDArray[np.uint8]:
    """The codes u8 of x f32, of any shape: to nearest, half to even, saturating. NaN becomes 0x7f, or 0xff where it has a sign."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    with np.errstate(all="ignore"):
        size = np.minimum((bits & np.uint32(0x7FFFFFFF)).view(np.float32), np.float32(LARGEST))
        wide = size.view(np.uint32)
        # The mantissa cut to three bits, and the exponent's bias from 127 to 7.
        normal = ((wide + np.uint32(0x7FFFF) + (wide >> 20 & 1)) >> 20) - np.uint32(120 << 3)
        small = np.rint(np.nan_to_num(size) * np.float32(512)).astype(np.uint32)
    code = np.where(size < _LEAST_NORMAL, small, normal)
    code = np.where(np.isnan(size), np.uint32(0x7F), code)
    return np.asarray(code | bits >> 24 & 0x80, np.uint8).reshape(np.shape(x))


def quantize(x: NDArray[Any]) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Codes u8 [..., K] and scales f32 [..., 1] of rows x f32 [..., K]: the largest of a row becomes 448.

    scale = absmax / 448, or 1 where absmax is below 2^-100; code = encode(x * (1 / scale)). The scale of a row with a NaN is NaN.
    """
    with np.errstate(all="ignore"):
        largest = np.max(np.abs(x), axis=-1, keepdims=True, initial=0.0)
        scales = np.where(largest < _LEAST_SCALED, np.float32(1), largest / np.float32(LARGEST)).astype(np.float32)
        codes = encode(x * (np.float32(1) / scales))
    return codes, scales


def round_rows(x: NDArray[Any]) -> NDArray[np.float32]:
    """Rows x f32 [..., K] as they come back from `quantize`: scale * number, in f32."""
    codes, scales = quantize(x)
    with np.errstate(all="ignore"):
        return np.asarray(decode(codes) * scales, np.float32)
