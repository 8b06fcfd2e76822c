"""Imports numpy without a tenth of a second of spinning.

The BLAS inside numpy starts a thread for every core when it is imported, and each of them spins for about 2^28 cycles before it goes to
sleep: on two cores it takes half of the machine just when the weights are hashed and the other modules are imported. With a shorter
patience they sleep at once; how many there are, and what they compute, stays as it is.
"""

from __future__ import annotations

import os
import sys

__all__ = ["import_numpy"]

_VARIABLE = "OPENBLAS_THREAD_TIMEOUT"
# log2 of cycles: under a millisecond, which is still longer than what lies between two products of one computation.
_PATIENCE = "20"


def import_numpy() -> None:
    """Import numpy, unless that is done. The environment is the same afterwards, and a patience that it asks for counts."""
    if "numpy" in sys.modules:
        return
    given = _VARIABLE in os.environ
    if not given:
        os.environ[_VARIABLE] = _PATIENCE
    try:
        import numpy  # noqa: F401
    finally:
        if not given:
            del os.environ[_VARIABLE]
