"""Scales in two levels: a signed byte for each group, times a bf16 for each output row.

A group's scale costs 8 bits instead of 16, and rows are still free of one another. The sign is needed where the largest element of a group
may lie at either end of a format's range. Products of the two are exact in f32, so that the f32 scales are all that a quantizer hands
over: row and bytes are found again from them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mixplan.runtime.errors import InternalError

__all__ = ["MOST", "join_scales", "row_scales", "split_scales"]

MOST = 127
"""Largest magnitude of a group's byte."""


def row_scales(largest: NDArray[np.float32]) -> NDArray[np.float32]:
    """The row scale under which the largest magnitude of a row's group scales is at most MOST: bf16, rounded up."""
    wanted = (largest / np.float32(MOST)).astype(np.float32)
    bits = wanted.view(np.uint32)
    return ((bits + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000)).view(np.float32)


def split_scales(scales: NDArray[np.float32]) -> NDArray[np.int8]:
    """Scales f32 [n, G] as bytes [n, 2 + G]: low and high byte of the row's bf16, then the groups' signed bytes.

    Raises InternalError for a row whose scales are no multiples, up to MOST times, of one bf16 number.
    """
    n, groups = scales.shape
    scales = np.ascontiguousarray(scales, np.float32)
    row, left = np.zeros(n, np.float32), np.flatnonzero(scales.any(axis=1))
    largest = np.abs(scales).max(axis=1, initial=0.0)
    # The largest scale is some whole number of row scales; mostly it is MOST of them.
    for count in range(MOST, 0, -1):
        if not left.size:
            break
        guess = (largest[left] / np.float32(count)).astype(np.float32)
        fits = (guess.view(np.uint32) & 0xFFFF == 0) & (guess * np.float32(count) == largest[left])
        with np.errstate(all="ignore"):
            parts = scales[left[fits]] / guess[fits, None]
        fits[fits] = (parts == np.rint(parts)).all(axis=1)
        row[left[fits]] = guess[fits]
        left = left[~fits]
    if left.size:
        raise InternalError(f"Two-level scales must be a bf16 number times whole numbers up to {MOST}; row {left[0]} is not.")
    out = np.empty((n, 2 + groups), np.int8)
    out[:, :2] = (row.view(np.uint32) >> 16).astype("<u2")[:, None].view(np.int8)
    with np.errstate(all="ignore"):
        out[:, 2:] = np.where(row[:, None] == 0, 0, scales / row[:, None]).astype(np.int8)
    return out


def join_scales(packed: NDArray[np.int8]) -> NDArray[np.float32]:
    """What split_scales made, as f32 [n, G] again."""
    bits = np.ascontiguousarray(packed[:, :2]).view("<u2").astype(np.uint32) << 16
    with np.errstate(all="ignore"):  # the bytes of a damaged plan may stand for anything
        return packed[:, 2:].astype(np.float32) * bits.view(np.float32)
