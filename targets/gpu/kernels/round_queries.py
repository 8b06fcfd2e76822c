"""Queries rounded to int8 with a scale for each token and head: the scores `i8` of the op `attention`."""

import triton
import triton.language as tl

from mixplan.targets.gpu.kernels.common import rint

__all__ = ["round_queries"]


@triton.jit
def round_queries(q):
    """q f32 [m, D] as the numbers that its int8 codes stand for."""
    largest = tl.max(tl.abs(q), axis=1)
    inverse = tl.where(largest > 1e-30, 127.0 / largest, 0.0)
    return rint(q * inverse[:, None]) * (largest / 127.0)[:, None]
