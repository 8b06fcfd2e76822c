"""Round-to-nearest quantization of a weight's rows, in bounded memory.

Symmetric 4-bit codes are 0..15 around zero point 8, so the side with one more code goes to the element of largest magnitude: the scale is
that element over -d, and for every group the d with the least squared error is kept. d = 8 uses all sixteen codes (and gives back exactly
a weight that was on such a grid, Q4_0 for one), d = 7 is the plain symmetric rule, larger ones clip the largest element a little.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from mixplan.runtime.dtypes import DType
from mixplan.runtime.errors import CheckpointError
from mixplan.runtime.formats import WeightFormat, round_up
from mixplan.runtime.packing import Packed, Quantized, pack

__all__ = ["not_finite", "pack_rows", "quantize_rows"]

_DIVISORS = (8.0, 7.0, 7.5, 8.5, 9.0)


def pack_rows(fmt: WeightFormat, rows: torch.Tensor, name: str) -> Packed:
    """Rows f32 [n, K] in the packed layout of `fmt`. CheckpointError naming `name` where they are not finite."""
    if fmt.quantized:
        return pack(fmt, quantize_rows(fmt, rows, name))
    values: NDArray[np.float32] = rows.numpy()
    if not np.isfinite(values).all():
        raise not_finite(name)
    return pack(fmt, values)


def quantize_rows(fmt: WeightFormat, rows: torch.Tensor, name: str) -> Quantized:
    """Rows f32 [n, K] to codes, scales and, where asymmetric, zero points."""
    count, columns = rows.shape
    group = fmt.group_size or columns
    padded = round_up(columns, group)
    if padded != columns:
        rows = torch.nn.functional.pad(rows, (0, padded - columns))
    grouped = rows.reshape(count, padded // group, group)
    low, high = torch.aminmax(grouped, dim=-1)
    if not bool(torch.isfinite(low).all() and torch.isfinite(high).all()):
        raise not_finite(name)
    to_storage = _round_scale(fmt.scale_dtype)
    zeros: torch.Tensor | None = None
    if not fmt.symmetric:
        scale, zeros = _asymmetric(fmt, low, high, to_storage)
        codes = _codes(fmt, grouped, scale, zeros.unsqueeze(-1))
    elif fmt.bits == 8:
        scale = to_storage(torch.maximum(high, -low) / 127.0)
        codes = _codes(fmt, grouped, scale, 128.0)
    else:
        scale = _best_scale(fmt, grouped, torch.where(high >= -low, high, low), to_storage)
        codes = _codes(fmt, grouped, scale, float(fmt.zero_point))
    if not bool(torch.isfinite(scale).all()):
        raise CheckpointError(
            f"Weight {name} holds numbers too large for {fmt.scale_dtype.value} scales.", hint="Give that layer the scheme BF16 or FP32."
        )
    flat = codes.to(torch.uint8).reshape(count, padded)[:, :columns].contiguous()
    scales: NDArray[np.float32] = scale.numpy()
    stored = scales.astype(fmt.scale_dtype.numpy)
    return Quantized(flat.numpy(), stored, None if zeros is None else zeros.to(torch.uint8).numpy())


def _round_scale(dtype: DType) -> Callable[[torch.Tensor], torch.Tensor]:
    """Scales are rounded to their storage before anything is quantized with them."""
    return (lambda s: s.half().float()) if dtype is DType.f16 else (lambda s: s)


def _inverse(scale: torch.Tensor) -> torch.Tensor:
    return torch.where(scale == 0, torch.zeros_like(scale), 1.0 / scale)


def _codes(fmt: WeightFormat, grouped: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor | float) -> torch.Tensor:
    """round(w / scale) + zero, within the codes; float [n, G, group]."""
    least = 1.0 if fmt.symmetric and fmt.bits == 8 else 0.0
    return torch.mul(grouped, _inverse(scale).unsqueeze(-1)).round_().add_(zero).clamp_(least, float(fmt.levels - 1))


def _best_scale(
    fmt: WeightFormat, grouped: torch.Tensor, extreme: torch.Tensor, to_storage: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """For each group [n, G], the scale among the candidates with the least squared error."""
    best = to_storage(extreme / -_DIVISORS[0])
    least = torch.full_like(best, torch.inf)
    twice = grouped * -2.0
    low, high = -float(fmt.zero_point), float(fmt.levels - 1 - fmt.zero_point)
    for divisor in _DIVISORS:
        scale = to_storage(extreme / -divisor)
        codes = torch.mul(grouped, _inverse(scale).unsqueeze(-1)).round_().clamp_(low, high)
        # |s q - w|^2 less |w|^2, which all candidates share: s * sum(q * (s q - 2 w)).
        error = torch.addcmul(twice, codes, scale.unsqueeze(-1)).mul_(codes).sum(-1).mul_(scale)
        better = error < least
        best, least = torch.where(better, scale, best), torch.where(better, error, least)
    return best


def _asymmetric(
    fmt: WeightFormat, low: torch.Tensor, high: torch.Tensor, to_storage: Callable[[torch.Tensor], torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale and zero point that cover [low, high] and 0, so that a zero stays a zero."""
    low, high = low.clamp(max=0.0), high.clamp(min=0.0)
    scale = to_storage((high - low) / (fmt.levels - 1))
    return scale, torch.round(-low * _inverse(scale)).clamp(0, fmt.levels - 1)


def not_finite(name: str) -> CheckpointError:
    """The error for a weight with NaN in it."""
    return CheckpointError(f"Weight {name} holds NaN or infinity.", hint="The checkpoint is damaged, or training diverged: get it again.")
