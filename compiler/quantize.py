"""Round-to-nearest quantization of a weight's rows, in bounded memory.

Where it is known how much each column matters (importance.py), errors count by that, and more scales are tried.

Symmetric 4-bit codes are 0..15 around zero point 8, so the side with one more code goes to the element of largest magnitude: the
scale is that element over -d, and for every group the d with the least squared error is kept. d = 8 uses all sixteen codes (and
gives back exactly a weight that was on such a grid, Q4_0 for one), d = 7 is the plain symmetric rule, larger ones clip the largest
element a little. Asymmetric 4-bit codes cover the range from the least to the largest element, or that range shrunk a little.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from mixplan.runtime.dtypes import DType
from mixplan.runtime.errors import CheckpointError
from mixplan.runtime.formats import WeightFormat, round_up
from mixplan.runtime.packing import Packed, Quantized, pack

__all__ = ["not_finite", "pack_rows", "quantize_rows"]

_DIVISORS = (8.0, 7.0, 7.5, 8.5, 9.0)
_SHRINKS = (1.0, 0.95, 0.9, 0.85)
_MORE_DIVISORS = (*_DIVISORS, 6.5, 7.25, 7.75, 8.25, 9.5)
_MORE_SHRINKS = (*_SHRINKS, 0.975, 0.8)
# What a column counts for at least, as a part of the mean.
_LEAST_IMPORTANCE = 1e-3


def pack_rows(fmt: WeightFormat, rows: torch.Tensor, name: str, importance: torch.Tensor | None = None) -> Packed:
    """Rows f32 [n, K] in the packed layout of `fmt`. CheckpointError naming `name` where they are not finite."""
    if fmt.quantized:
        return pack(fmt, quantize_rows(fmt, rows, name, importance))
    values: NDArray[np.float32] = rows.numpy()
    if not np.isfinite(values).all():
        raise not_finite(name)
    return pack(fmt, values)


def quantize_rows(fmt: WeightFormat, rows: torch.Tensor, name: str, importance: torch.Tensor | None = None) -> Quantized:
    """Rows f32 [n, K] to codes, scales and, where asymmetric, zero points. importance: f32 [K], what a squared error in a column counts."""
    count, columns = rows.shape
    group = fmt.group_size or columns
    padded = round_up(columns, group)
    if padded != columns:
        rows = torch.nn.functional.pad(rows, (0, padded - columns))
    grouped = rows.reshape(count, padded // group, group)
    low, high = torch.aminmax(grouped, dim=-1)
    if not bool(torch.isfinite(low).all() and torch.isfinite(high).all()):
        raise not_finite(name)
    weights = None
    if importance is not None and fmt.bits == 4:
        weights = torch.nn.functional.pad(importance / importance.mean() + _LEAST_IMPORTANCE, (0, padded - columns))
        weights = weights.reshape(1, padded // group, group)
    scale, zero = _best(fmt, grouped, list(_candidates(fmt, low, high, weights is not None)), weights)
    codes = _codes(fmt, grouped, scale, zero)
    if not bool(torch.isfinite(scale).all()):
        raise CheckpointError(
            f"Weight {name} holds numbers too large for {fmt.scale_dtype.value} scales.", hint="Give that layer the scheme BF16 or FP32."
        )
    flat = codes.to(torch.uint8).reshape(count, padded)[:, :columns].contiguous()
    scales: NDArray[np.float32] = scale.numpy()
    stored = scales.astype(fmt.scale_dtype.numpy)
    return Quantized(flat.numpy(), stored, None if fmt.symmetric else zero.to(torch.uint8).numpy())


def _candidates(fmt: WeightFormat, low: torch.Tensor, high: torch.Tensor, more: bool) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Scales and zero points, each [n, G], that are tried on groups with the given least and largest elements."""
    if fmt.symmetric and fmt.bits == 8:
        scale = torch.maximum(high, -low) / 127.0
        yield _stored(fmt, scale), torch.full_like(scale, float(fmt.zero_point))
    elif fmt.symmetric:
        extreme = torch.where(high >= -low, high, low)
        middle = torch.full_like(extreme, float(fmt.zero_point))
        for divisor in _MORE_DIVISORS if more else _DIVISORS:
            yield _stored(fmt, extreme / -divisor), middle
    else:
        # The range takes in 0, so that a zero stays a zero.
        low, high = low.clamp(max=0.0), high.clamp(min=0.0)
        for factor in (_MORE_SHRINKS if more else _SHRINKS) if fmt.bits == 4 else (1.0,):
            scale = _stored(fmt, (high - low) * (factor / (fmt.levels - 1)))
            yield scale, torch.round(low * -factor * _inverse(scale)).clamp(0, fmt.levels - 1)


def _stored(fmt: WeightFormat, scale: torch.Tensor) -> torch.Tensor:
    """Scales as they are stored: they are rounded before anything is quantized with them."""
    return scale.half().float() if fmt.scale_dtype is DType.f16 else scale


def _inverse(scale: torch.Tensor) -> torch.Tensor:
    return torch.where(scale == 0, torch.zeros_like(scale), 1.0 / scale)


def _codes(fmt: WeightFormat, grouped: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    """round(w / scale) + zero, within the codes; float [n, G, group]."""
    least = 1.0 if fmt.symmetric and fmt.bits == 8 else 0.0
    return torch.mul(grouped, _inverse(scale).unsqueeze(-1)).round_().add_(zero.unsqueeze(-1)).clamp_(least, float(fmt.levels - 1))


def _best(
    fmt: WeightFormat, grouped: torch.Tensor, candidates: Sequence[tuple[torch.Tensor, torch.Tensor]], weights: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """For each group, the candidate with the least squared error, each column's times its weight if given; among equals the first."""
    best = candidates[0]
    if len(candidates) == 1:
        return best
    least = torch.full_like(best[0], torch.inf)
    twice = grouped * -2.0
    for scale, zero in candidates:
        codes = _codes(fmt, grouped, scale, zero).sub_(zero.unsqueeze(-1))
        # |s q - w|^2 less |w|^2, which all candidates share: s * sum(q * (s q - 2 w)).
        error = torch.addcmul(twice, codes, scale.unsqueeze(-1)).mul_(codes)
        if weights is not None:
            error.mul_(weights)
        error = error.sum(-1).mul_(scale)
        better = error < least
        best = (torch.where(better, scale, best[0]), torch.where(better, zero, best[1]))
        least = torch.where(better, error, least)
    return best


def not_finite(name: str) -> CheckpointError:
    """The error for a weight with NaN in it."""
    return CheckpointError(f"Weight {name} holds NaN or infinity.", hint="The checkpoint is damaged, or training diverged: get it again.")
