"""The codebooks of the nonuniform formats: what each code stands for, in 1/127 of the largest, before the group's scale.

They were made by benchmarks/codebooks.py: Lloyd's iterations over synthetic groups from a heavy-tailed law, each normalised by its
element of largest magnitude (which so comes to lie at -127). They are part of the plan format: another table would be another format.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["CODEBOOKS"]

_ENTRIES = {
    2: [-127, -38, 13, 78],
    3: [-127, -74, -41, -17, 3, 25, 53, 96],
    4: [-127, -97, -76, -59, -44, -31, -20, -9, 1, 10, 21, 32, 45, 61, 81, 115],
    5: [
        *(-127, -115, -103, -92, -84, -76, -68, -61, -54, -46, -39, -33, -26, -20, -14, -7),
        *(-1, 5, 11, 18, 25, 32, 39, 46, 53, 61, 68, 76, 84, 93, 103, 120),
    ],
}

CODEBOOKS: dict[int, NDArray[np.int8]] = {bits: np.array(entries, np.int8) for bits, entries in _ENTRIES.items()}
"""By width, i8 [2 ** bits], ascending."""
