"""Running sums along rows. Grid: (rows,)."""

import triton
import triton.language as tl

__all__ = ["cumsum"]


@triton.jit
def cumsum(x_ptr, y_ptr, K: tl.constexpr, BLOCK: tl.constexpr):
    """x [rows, K] to y; BLOCK: a power of two >= K."""
    row = tl.program_id(0)
    k = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * K + k, mask=k < K, other=0)
    tl.store(y_ptr + row * K + k, tl.cumsum(x, axis=0), mask=k < K)
