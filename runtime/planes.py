"""Codes of 2 to 8 bits as rows of 64 bytes: the part of the packed layout that is the same for all of them.

The 32 columns of a unit are eight steps of four columns, and a row of 64 bytes holds one byte for each of 16 lanes and four columns. A
width is cut into planes of 8, 4, 2 or 1 bits, the wider (with the lower bits of the code) first; a plane of w bits takes w rows, and
row r of it holds at bits [f * w, f * w + w) the part of step r * (8 / w) + f. So a kernel takes a plane apart by shifts and masks of whole
registers, and what comes out is in the order in which it multiplies.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mixplan.runtime.formats import UNIT

__all__ = ["PLANES", "join_planes", "split_planes"]

PLANES = {8: (8,), 6: (4, 2), 5: (4, 1), 4: (4,), 3: (2, 1), 2: (2,)}
"""Widths of the planes of a code, in the order in which they are stored."""

_STEPS = 8


def split_planes(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Codes [n, Kp] as bytes [n, Kp / 32 * bits, 4], Kp a multiple of 32: one row of it is a lane's part of a packed row."""
    n, columns = codes.shape
    if bits == 8:
        return codes.reshape(n, columns // 4, 4)
    steps = codes.reshape(n, columns // UNIT, _STEPS, 4)
    rows, low = [], 0
    for width in PLANES[bits]:
        part = ((steps >> low) & ((1 << width) - 1)).reshape(n, columns // UNIT, width, _STEPS // width, 4)
        plane = part[:, :, :, 0].copy()
        for f in range(1, _STEPS // width):
            plane |= part[:, :, :, f] << (f * width)
        rows.append(plane)
        low += width
    return np.concatenate(rows, axis=2).reshape(n, columns // UNIT * bits, 4)


def join_planes(packed: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """What split_planes made, as codes [n, Kp] again."""
    n, rows, _ = packed.shape
    if bits == 8:
        return packed.reshape(n, rows * 4)
    units = packed.reshape(n, rows // bits, bits, 4)
    steps = np.zeros((n, rows // bits, _STEPS, 4), np.uint8)
    first = low = 0
    for width in PLANES[bits]:
        plane = units[:, :, first : first + width, None]
        shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
        part = (plane >> shifts) & np.uint8((1 << width) - 1)
        steps |= part.reshape(steps.shape) << low
        first += width
        low += width
    return steps.reshape(n, rows // bits * UNIT)
