"""Which scale, and zero point or minimum, each group of a weight's columns gets: the tried one whose rounding error counts least.

An error counts by its square, times its column's weight where that is known (importance.py).

Symmetric codes are 0..2d-1 around zero point d, so the side with one more code goes to the element of largest magnitude: the scale is
that element over -d, and divisors around d are tried. d itself uses all codes (and gives back exactly a weight that was on such a grid,
Q4_0 for one), larger divisors clip the largest element a little. A codebook is no more even-handed, so for narrow codes and codebooks the
other sign is tried too. Asymmetric codes cover the range from the least to the largest element, or that range shrunk a little.

The largest element of a group in e4m3 becomes 448: floats have the same relative error at any scale, so none is searched for.

From the best of these, formats other than plain 8 and 4 bits take a step more: the scale of least error for the codes that the best
scale gave. Two-level scales are searched as if they were f32; that gives the row's scale, and the bytes beside each group's best are tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mixplan.runtime.codebooks import CODEBOOKS
from mixplan.runtime.dtypes import DType
from mixplan.runtime.float8 import E4M3, LARGEST
from mixplan.runtime.float8 import encode as encode_floats
from mixplan.runtime.formats import WeightFormat, round_up
from mixplan.runtime.two_level import MOST, row_scales

__all__ = ["columns_weights", "decode", "encode", "is_plain", "row_scales_of", "search", "values"]

_DIVISORS = (8.0, 7.0, 7.5, 8.5, 9.0)
_SHRINKS = (1.0, 0.95, 0.9, 0.85)
_MORE_DIVISORS = (*_DIVISORS, 6.5, 7.25, 7.75, 8.25, 9.5)
_MORE_SHRINKS = (*_SHRINKS, 0.975, 0.8)
# For the other formats: scales by these, over the one at which the largest element has the outermost code.
_FACTORS = (1.0, 0.96, 0.92, 0.88, 0.84, 0.8, 0.75, 0.7, 1.04, 1.08)
_OTHER_SIGN = (1.18, 1.12, 1.06, 1.0, 0.94, 0.88, 0.82, 0.76)
_FINER = (1.0, 0.98, 0.96, 0.94, 0.92, 0.9, 0.87, 0.84)
_ENDS = (1.0, 0.925, 0.85, 0.775)
# Up to this width the side with one code more is worth a try at either end.
_NARROW = 3
# Room that a row's own scale leaves above the largest of its groups' scales, where groups change after it was chosen.
_ROOM = np.float32(1.25)
# What a column counts for at least, as a part of the mean.
_LEAST_IMPORTANCE = 1e-3

Tried = tuple[Tensor, Tensor]
"""A scale and a zero for each group, [n, G]: the code that stands for 0, or the minimum."""


def columns_weights(importance: Tensor, group: int) -> Tensor:
    """importance f32 [K] as what errors count in groups, [1, G, group]; no column counts for nothing."""
    columns = importance.shape[0]
    padded = round_up(columns, group)
    weights = torch.nn.functional.pad(importance / importance.mean() + _LEAST_IMPORTANCE, (0, padded - columns))
    return weights.reshape(1, padded // group, group)


def search(fmt: WeightFormat, grouped: Tensor, weights: Tensor | None = None, rows: Tensor | None = None, *, finer: bool = False) -> Tried:
    """Scales as they are stored, and zeros, of groups f32 [n, G, group] under a quantized format. weights: f32 [1 or n, G, group].

    rows: f32 [n, 1], where two-level scales are to be whole numbers of these (see `row_scales_of`), as for a part of a row's groups.
    finer: 8-bit scales too are searched for.
    """
    if fmt.floating:
        scale = grouped.abs().amax(-1) / LARGEST
        return scale, torch.zeros_like(scale)
    if finer and fmt.bits == 8 and fmt.symmetric:
        return _finer(fmt, grouped, weights, rows)
    if is_plain(fmt):
        known = weights if fmt.bits == 4 else None
        return _best(fmt, grouped, list(_plain_candidates(fmt, grouped, known is not None)), known)[0]
    best, error = _best(fmt, grouped, _candidates(fmt, grouped), weights)
    if fmt.two_level:
        return _two_level(fmt, grouped, best, weights, rows)
    if fmt.bits == 8:
        return best
    return _best(fmt, grouped, [_refined(fmt, grouped, best, weights)], weights, (best, error))[0]


def is_plain(fmt: WeightFormat) -> bool:
    """The formats whose scales are tried as they always were, so that the plans made of them stay the same."""
    return fmt.bits in (8, 4) and not (
        fmt.nonuniform or fmt.two_level or fmt.has_minimum or (fmt.group_size and fmt.scale_dtype is DType.f32)
    )


def _plain_candidates(fmt: WeightFormat, grouped: Tensor, more: bool) -> Iterator[Tried]:
    low, high = torch.aminmax(grouped, dim=-1)
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


def _candidates(fmt: WeightFormat, grouped: Tensor) -> Iterator[Tried]:
    low, high = torch.aminmax(grouped, dim=-1)
    extreme = torch.where(high >= -low, high, low)
    middle = torch.full_like(extreme, 0.0 if fmt.nonuniform else float(fmt.zero_point))
    if fmt.bits == 8 and fmt.symmetric:
        yield _stored(fmt, extreme.abs() / 127.0), middle
    elif fmt.symmetric:
        outermost = -float(MOST if fmt.nonuniform else fmt.zero_point)
        for factor in _FACTORS:
            yield _stored(fmt, extreme * (factor / outermost)), middle
        for factor in _OTHER_SIGN if fmt.nonuniform or fmt.bits <= _NARROW else ():
            yield _stored(fmt, extreme * (-factor / outermost)), middle
    else:
        if not fmt.has_minimum:
            low, high = low.clamp(max=0.0), high.clamp(min=0.0)
        ends = (1.0,) if fmt.bits == 8 else _ENDS
        for below in ends:
            for above in ends:
                # Shrunk towards 0, or towards the middle where the range need not hold 0.
                centre = (low + high) / 2 if fmt.has_minimum else 0.0
                least, most = (low - centre) * below + centre, (high - centre) * above + centre
                scale = _stored(fmt, (most - least) / (fmt.levels - 1))
                if fmt.has_minimum:
                    yield scale, least.half().float()
                else:
                    yield scale, torch.round(-least * _inverse(scale)).clamp(0, fmt.levels - 1)


def _refined(fmt: WeightFormat, grouped: Tensor, tried: Tried, weights: Tensor | None) -> Tried:
    """The scale of least error for the codes that the tried one gives."""
    scale, zero = tried
    found = values(fmt, grouped, scale, zero)
    counted = found if weights is None else found * weights
    target = grouped - zero.unsqueeze(-1) if fmt.has_minimum else grouped
    size = (counted * found).sum(-1)
    return _stored(fmt, torch.where(size > 0, (counted * target).sum(-1) / size, scale)), zero


def _finer(fmt: WeightFormat, grouped: Tensor, weights: Tensor | None, rows: Tensor | None) -> Tried:
    """Symmetric 8-bit scales that may clip the largest element a little."""
    largest = grouped.abs().amax(-1)
    middle = torch.full_like(largest, float(fmt.zero_point))
    tried = [(_stored(fmt, largest * (factor / 127.0)), middle) for factor in _FINER]
    if rows is not None:
        tried = [((scale * _inverse(rows)).round().clamp(0, MOST) * rows, zero) for scale, zero in tried]
    return _best(fmt, grouped, tried, weights)[0]


def row_scales_of(fmt: WeightFormat, grouped: Tensor, weights: Tensor | None = None) -> Tensor | None:
    """The rows' own scales f32 [n, 1] of two-level formats; None for others. With room: groups may change yet."""
    if not fmt.two_level:
        return None
    scale = _best(fmt, grouped, _candidates(fmt, grouped), weights)[0][0]
    return torch.from_numpy(row_scales(scale.abs().amax(1).numpy() * _ROOM))[:, None]


def _two_level(fmt: WeightFormat, grouped: Tensor, tried: Tried, weights: Tensor | None, rows: Tensor | None) -> Tried:
    """Scales that are a row's bf16 times a whole number, near the tried ones."""
    scale, zero = tried
    row = torch.from_numpy(row_scales(scale.abs().amax(1).numpy()))[:, None] if rows is None else rows
    count = scale * _inverse(row)
    if fmt.bits == 8:
        # Nothing is clipped.
        return (count.abs() - 1e-6).ceil().clamp(0, MOST) * row, zero
    nearest = count.round()
    near = [((nearest + step).clamp(-MOST, MOST) * row, zero) for step in (0.0, -1.0, 1.0)]
    best, error = _best(fmt, grouped, near, weights)
    refined = (_refined(fmt, grouped, best, weights)[0] * _inverse(row)).round().clamp(-MOST, MOST) * row
    return _best(fmt, grouped, [(refined, zero)], weights, (best, error))[0]


def _stored(fmt: WeightFormat, scale: Tensor) -> Tensor:
    """Scales as they are stored: they are rounded before anything is quantized with them."""
    return scale.half().float() if fmt.scale_dtype is DType.f16 else scale


def _inverse(scale: Tensor) -> Tensor:
    return torch.where(scale == 0, torch.zeros_like(scale), 1.0 / scale)


def encode(fmt: WeightFormat, grouped: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """The nearest codes of groups f32 [n, G, group], float."""
    if fmt.floating:
        return torch.from_numpy(_floats(grouped, scale).astype(np.float32))
    if fmt.nonuniform:
        return torch.from_numpy(_table(fmt.bits, True).take(_places(grouped, scale), mode="clip"))
    if fmt.has_minimum:
        return (grouped - zero.unsqueeze(-1)).mul_(_inverse(scale).unsqueeze(-1)).round_().clamp_(0.0, float(fmt.levels - 1))
    least = 1.0 if fmt.symmetric and fmt.bits == 8 else 0.0
    return torch.mul(grouped, _inverse(scale).unsqueeze(-1)).round_().add_(zero.unsqueeze(-1)).clamp_(least, float(fmt.levels - 1))


def values(fmt: WeightFormat, grouped: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """What the nearest codes stand for, before the scale and any minimum; float [n, G, group]."""
    if fmt.floating:
        return torch.from_numpy(E4M3[_floats(grouped, scale)])
    if fmt.nonuniform:
        return torch.from_numpy(_table(fmt.bits, False).take(_places(grouped, scale), mode="clip"))
    codes = encode(fmt, grouped, scale, zero)
    return codes if fmt.has_minimum else codes.sub_(zero.unsqueeze(-1))


def decode(fmt: WeightFormat, grouped: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """What groups f32 [n, G, group] become: the nearest that the format holds."""
    found = values(fmt, grouped, scale, zero).mul_(scale.unsqueeze(-1))
    return found.add_(zero.unsqueeze(-1)) if fmt.has_minimum else found


def _floats(grouped: Tensor, scale: Tensor) -> NDArray[np.uint8]:
    return encode_floats((grouped * _inverse(scale).unsqueeze(-1)).numpy())


# Entries of a codebook are whole, so that the borders between neighbours are multiples of a half.
_STEPS, _REACH = 2, 2 * MOST


def _places(grouped: Tensor, scale: Tensor) -> NDArray[np.int64]:
    """Where in a codebook's table each element is found; beyond its ends, which are taken for the ends, anywhere."""
    scaled = torch.mul(grouped, _inverse(scale).mul_(float(_STEPS)).unsqueeze(-1)).add_(float(_STEPS * _REACH))
    return scaled.clamp_(0.0, float(2 * _STEPS * _REACH)).numpy().astype(np.int64)


@lru_cache(maxsize=16)
def _table(bits: int, codes: bool) -> NDArray[np.float32]:
    """For each half step of [-REACH, REACH] the nearest entry of a codebook, or its code."""
    book = CODEBOOKS[bits].astype(np.float32)
    centres = (np.arange(2 * _STEPS * _REACH + 1) + 0.5) / _STEPS - _REACH
    nearest = np.abs(centres[:, None] - book).argmin(axis=1)
    table: NDArray[np.float32] = nearest.astype(np.float32) if codes else book[nearest]
    return table


def _best(
    fmt: WeightFormat,
    grouped: Tensor,
    candidates: Iterable[Tried] | Sequence[Tried],
    weights: Tensor | None,
    known: tuple[Tried, Tensor] | None = None,
) -> tuple[Tried, Tensor]:
    """For each group, the candidate with the least squared error, each column's times its weight if given, and that error; among equals
    the first. `known` is one that was tried before."""
    if known is None and isinstance(candidates, list) and len(candidates) == 1:
        return candidates[0], torch.zeros(())
    best, least = known or (None, None)
    twice = grouped * -2.0
    for scale, zero in candidates:
        found = values(fmt, grouped, scale, zero)
        # |s v - w|^2 less |w|^2, which all candidates share: s * sum(v * (s v - 2 w)).
        if fmt.has_minimum:
            error = torch.addcmul(zero.unsqueeze(-1) - grouped, found, scale.unsqueeze(-1)).square_()
        else:
            error = torch.addcmul(twice, found, scale.unsqueeze(-1)).mul_(found)
        if weights is not None:
            error.mul_(weights)
        error = error.sum(-1) if fmt.has_minimum else error.sum(-1).mul_(scale)
        if best is None or least is None:
            best, least = (scale, zero), error
            continue
        better = error < least
        best = (torch.where(better, scale, best[0]), torch.where(better, zero, best[1]))
        least = torch.where(better, error, least)
    assert best is not None and least is not None
    return best, least
