"""How far a result is from the reference's, in units of what is allowed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mixplan.runtime.dtypes import DType, bf16_to_f32
from mixplan.targets.conformance.case import Array, Tolerance

__all__ = ["Distance", "distance"]

_INTEGERS = (DType.i64, DType.i32, DType.i16, DType.i8, DType.u8, DType.bool)


@dataclass(frozen=True)
class Distance:
    """error: the largest |result - reference|. ratio: the largest share of what an element's tolerance allows; above 1 is a failure."""

    error: float = 0.0
    ratio: float = 0.0

    def worse(self, other: Distance) -> Distance:
        """The larger of each."""
        return Distance(max(self.error, other.error), max(self.ratio, other.ratio))


def distance(got: Array, want: Array, dtype: DType, tolerance: Tolerance, factor_error: float = 0.0) -> Distance:
    """Of two arrays of one shape and dtype. Equal infinities, and NaN beside NaN, are no error; anything else beside them is infinite.

    factor_error: by how much, relatively, each factor of a sum of products may be off. The sum is then off by a few times that share of
    what the largest sums are: 4, for two factors, and for sums that are multiplied with one another.
    """
    if got.size == 0:
        return Distance()
    a, b = (_floats(array, dtype) for array in (got, want))
    # Large integers are told apart as they are: as floats they may be equal.
    same = (got == want) | (a == b) & (dtype not in _INTEGERS) | np.isnan(a) & np.isnan(b)
    with np.errstate(all="ignore"):
        error = np.where(same, 0.0, np.abs(a - b))
    error[~np.isfinite(error) | ~same & (error == 0)] = np.inf
    finite = np.abs(np.where(np.isfinite(b), b, 0.0))
    allowed = tolerance.absolute + tolerance.relative * finite + 4 * factor_error * (finite + finite.max())
    with np.errstate(all="ignore"):
        ratio = np.where(error == 0, 0.0, error / allowed)
    if tolerance.step:
        beyond = ratio > 1
        ratio[beyond & (error <= allowed + tolerance.step)] = 1.0
        if beyond.mean() > tolerance.share:
            ratio[beyond] = np.maximum(ratio[beyond], beyond.mean() / tolerance.share)
    return Distance(float(error.max()), float(ratio.max()))


def _floats(array: Array, dtype: DType) -> Array:
    """As float64."""
    if dtype is DType.bf16:
        return bf16_to_f32(array).astype(np.float64)
    return array.astype(np.float64)
