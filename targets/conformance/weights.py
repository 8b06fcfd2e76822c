"""Random packed weights of any format, for cases and for tests of kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mixplan.runtime.dtypes import bf16_to_f32, f32_to_bf16
from mixplan.runtime.formats import WeightFormat
from mixplan.runtime.packing import Packed, Quantized, concat_experts, interleave_gated, pack

__all__ = ["Weight", "random_weight"]


@dataclass(frozen=True)
class Weight:
    """A random packed weight with `copies` parts (2: gate and up, interleaved; more: experts), and how kernels and references name it."""

    fmt: WeightFormat
    rows: int
    columns: int
    packed: Packed

    @property
    def attrs(self) -> dict[str, Any]:
        """The attributes of an op on it."""
        return {"format": self.fmt.name, "rows": self.rows, "columns": self.columns, "group_size": self.fmt.group_size}

    @property
    def arrays(self) -> list[Any]:
        """weight, scales, zeros as an op takes them."""
        return [self.packed["weight"], self.packed.get("scales"), self.packed.get("zeros")]

    @property
    def fields(self) -> dict[str, Any]:
        """The same as a kernel takes them."""
        return dict(zip(("w", "scales", "zeros"), self.arrays, strict=True))


def random_weight(
    rng: np.random.Generator, fmt: WeightFormat, rows: int, columns: int, kind: str = "linear", extreme: bool = False
) -> Weight:
    """kind: "linear", "gated", or a number of experts. extreme: every code is the largest. No code of floats is a NaN."""
    parts = [_one(rng, fmt, rows, columns, extreme) for _ in range(1 if kind == "linear" else 2 if kind == "gated" else int(kind))]
    packed = parts[0] if kind == "linear" else interleave_gated(*parts) if kind == "gated" else concat_experts(parts)
    return Weight(fmt, rows, columns, packed)


def _one(rng: np.random.Generator, fmt: WeightFormat, rows: int, columns: int, extreme: bool) -> Packed:
    if not fmt.quantized:
        return pack(fmt, rng.standard_normal((rows, columns)).astype(np.float32))
    groups, top = fmt.groups(columns), fmt.levels - 1
    codes = np.full((rows, columns), top) if extreme else rng.integers(0, top + 1, (rows, columns))
    if fmt.floating:
        codes[codes & 0x7F == 0x7F] -= 1
    scales = (rng.random((rows, groups)) + 0.5) / (256 if fmt.floating else 128 if fmt.nonuniform else fmt.levels)
    if fmt.two_level:
        row = bf16_to_f32(f32_to_bf16((scales.max(1, keepdims=True) / 120).astype(np.float32)))
        scales = row * np.rint(scales / row) * rng.choice([1, -1], scales.shape)
    zeros: Any = None
    if fmt.has_minimum:
        zeros = rng.standard_normal((rows, groups)).astype(np.float16)
    elif not fmt.symmetric:
        zeros = rng.integers(0, top + 1, (rows, groups)).astype(np.uint8)
    return pack(fmt, Quantized(codes.astype(np.uint8), scales.astype(np.float32 if fmt.two_level else fmt.scale_dtype.numpy), zeros))
