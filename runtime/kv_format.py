"""How keys and values are held in the KV cache, and the definition of their codes.

A format of integers is dynamic: each token's key (or value) of each KV head is rounded by itself when it is stored. Codes are unsigned, and
a group of them shares a scale and a minimum, both f16 and stored beside the codes:

    scale   = f16((largest - smallest) / (2^bits - 1))
    minimum = f16(smallest)
    code    = clip(round_half_even((x - minimum) * (1 / scale)), 0, 2^bits - 1)     in f32; 0 where scale is 0
    x       ~ scale * code + minimum                                                in f32

8-bit codes have one group a head, 4-bit codes groups of 32 elements (the last one may be shorter). A group with a NaN has a NaN for scale.

`fp8` are 8-bit floats (`float8.py`) without any scale: a number is rounded to the nearest, and what is beyond 448 becomes that. So keys and
values keep four bits each whatever is beside them; it is for finite numbers, and what a NaN reads as is not said.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixplan.runtime.dtypes import DType

__all__ = ["CODES", "FLOATS", "KvCodes", "KvFloats", "KvFormat", "dequantize", "quantize"]

_PARAMETER_BYTES = 4  # scale and minimum, f16


@dataclass(frozen=True)
class KvCodes:
    """Integer codes of `bits` bits; groups of `group` elements of a head, 0 for the whole head."""

    bits: int
    group: int

    @property
    def top(self) -> int:
        """The largest code."""
        return (1 << self.bits) - 1

    def groups(self, dim: int) -> int:
        """Groups of a head of `dim` elements."""
        return -(-dim // self.group) if self.group else 1

    def nbytes(self, dim: int) -> int:
        """Bytes of one token's head: codes, scales and minima."""
        return -(-dim * self.bits // 8) + _PARAMETER_BYTES * self.groups(dim)


@dataclass(frozen=True)
class KvFloats:
    """8-bit floats, e4m3."""

    value: str = "fp8"
    itemsize: int = 1


FLOATS = KvFloats()

CODES = {8: KvCodes(8, 0), 4: KvCodes(4, 32)}
"""The codes of each width."""


class KvFormat(StrEnum):
    """What one KV head holds. `k8v4` has keys as in `i8` and values as in `i4`: keys are the more sensitive of the two."""

    f32 = "f32"
    f16 = "f16"
    bf16 = "bf16"
    i8 = "i8"
    i4 = "i4"
    k8v4 = "k8v4"
    fp8 = "fp8"

    @property
    def keys(self) -> DType | KvCodes | KvFloats:
        """How keys are held."""
        return _HELD[self][0]

    @property
    def values(self) -> DType | KvCodes | KvFloats:
        """How values are held."""
        return _HELD[self][1]

    @property
    def quantized(self) -> bool:
        """Whether it holds integer codes."""
        return isinstance(self.keys, KvCodes)

    def token_bytes(self, k_dim: int, v_dim: int) -> int:
        """Bytes that a token's key and value of one head take."""
        return _nbytes(self.keys, k_dim) + _nbytes(self.values, v_dim)


_HELD: dict[KvFormat, tuple[DType | KvCodes | KvFloats, DType | KvCodes | KvFloats]] = {
    KvFormat.f32: (DType.f32, DType.f32),
    KvFormat.f16: (DType.f16, DType.f16),
    KvFormat.bf16: (DType.bf16, DType.bf16),
    KvFormat.i8: (CODES[8], CODES[8]),
    KvFormat.i4: (CODES[4], CODES[4]),
    KvFormat.k8v4: (CODES[8], CODES[4]),
    KvFormat.fp8: (FLOATS, FLOATS),
}


def _nbytes(held: DType | KvCodes | KvFloats, dim: int) -> int:
    return held.nbytes(dim) if isinstance(held, KvCodes) else held.itemsize * dim


def quantize(x: NDArray[Any], held: KvCodes) -> tuple[NDArray[np.uint8], NDArray[np.float16], NDArray[np.float16]]:
    """Codes [..., dim], scales and minima [..., groups] of heads x [..., dim] f32."""
    dim, groups = x.shape[-1], held.groups(x.shape[-1])
    width = held.group or dim
    # The last element again and again fills a shorter group up, and changes nothing of it.
    padding = [(0, 0)] * (x.ndim - 1) + [(0, groups * width - dim)]
    parts = np.pad(x, padding, mode="edge").reshape(*x.shape[:-1], groups, width)
    with np.errstate(all="ignore"):
        low, high = parts.min(axis=-1), parts.max(axis=-1)
        scales = ((high - low) / np.float32(held.top)).astype(np.float16)
        minima = low.astype(np.float16)
        wide = scales.astype(np.float32)
        inverse = np.where(wide > 0, np.float32(1) / wide, np.float32(0)).astype(np.float32)
        steps = np.rint((parts - minima.astype(np.float32)[..., None]) * inverse[..., None])
        codes = np.clip(np.nan_to_num(steps), 0, held.top).astype(np.uint8)
    return codes.reshape(*x.shape[:-1], groups * width)[..., :dim], scales, minima


def dequantize(codes: NDArray[np.uint8], scales: NDArray[np.float16], minima: NDArray[np.float16], held: KvCodes) -> NDArray[np.float32]:
    """The numbers [..., dim] f32 that `quantize` stands for."""
    dim = codes.shape[-1]
    of = np.arange(dim) // (held.group or dim)
    with np.errstate(all="ignore"):
        return np.asarray(scales.astype(np.float32)[..., of] * codes + minima.astype(np.float32)[..., of], np.float32)
