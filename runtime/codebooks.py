"""The codebooks of the nonuniform formats: what each code stands for, in 1/127 of the largest, before the group's scale.

They were made by benchmarks/codebooks.py: Lloyd's iterations over synthetic groups from a heavy-tailed law, each normalised by its
element of largest magnitude (which so comes to lie at -127). They are part of the plan format: another table would be another format.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["CODEBOOKS"]

_ENTRIES = {
    2: [-127, -40, 13, 83],
    3: [-127, -76, -42, -17, 4, 28, 58, 102],
    4: [-127, -100, -78, -59, -44, -31, -20, -10, 0, 9, 20, 32, 45, 60, 80, 108],
    5: [
        *(-127, -111, -99, -89, -80, -73, -65, -58, -51, -44, -38, -31, -25, -19, -13, -7),
        *(-1, 4, 10, 17, 24, 31, 37, 45, 52, 59, 66, 74, 82, 91, 102, 115),
    ],
}

CODEBOOKS: dict[int, NDArray[np.int8]] = {bits: np.array(entries, np.int8) for bits, entries in _ENTRIES.items()}
"""By width, i8 [2 ** bits], ascending."""
