"""Element types of plan values and tensors, and how numpy holds each.

numpy has no bfloat16: `bf16` is held as `uint16` bit patterns, converted by `bf16_to_f32` and `f32_to_bf16`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["DTYPE_OF_NUMPY", "DType", "bf16_to_f32", "f32_to_bf16"]


class DType(StrEnum):
    """Element type. The string value is what plan.json holds."""

    f32 = "f32"
    f16 = "f16"
    bf16 = "bf16"
    i64 = "i64"
    i32 = "i32"
    i16 = "i16"
    i8 = "i8"
    u8 = "u8"
    bool = "bool"

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy dtype that holds it."""
        return _NUMPY[self]

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return _NUMPY[self].itemsize

    @property
    def safetensors(self) -> str:
        """The dtype's name in a safetensors header."""
        return _SAFETENSORS[self]


_NUMPY: dict[DType, np.dtype[Any]] = {
    DType.f32: np.dtype("<f4"),
    DType.f16: np.dtype("<f2"),
    DType.bf16: np.dtype("<u2"),
    DType.i64: np.dtype("<i8"),
    DType.i32: np.dtype("<i4"),
    DType.i16: np.dtype("<i2"),
    DType.i8: np.dtype("i1"),
    DType.u8: np.dtype("u1"),
    DType.bool: np.dtype("?"),
}
DTYPE_OF_NUMPY: dict[np.dtype[Any], DType] = {held: dtype for dtype, held in _NUMPY.items()}
"""The dtype that a numpy array of a plan's value has; uint16 is bf16."""
_SAFETENSORS = {
    DType.f32: "F32",
    DType.f16: "F16",
    DType.bf16: "BF16",
    DType.i64: "I64",
    DType.i32: "I32",
    DType.i16: "I16",
    DType.i8: "I8",
    DType.u8: "U8",
    DType.bool: "BOOL",
}


def bf16_to_f32(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Widen bfloat16 bit patterns (any shape) to float32, exactly."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def f32_to_bf16(x: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round float32 (any shape) to bfloat16 bit patterns, to nearest even; NaN stays NaN."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    rounded = ((bits + (np.uint32(0x7FFF) + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    nan = np.isnan(x)
    if nan.any():
        rounded = np.where(nan, np.uint16(0x7FC0), rounded)
    # A scalar array comes back as one: ascontiguousarray gave it a dim.
    return rounded.reshape(np.shape(x))
