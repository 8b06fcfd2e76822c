"""Rows by index. Grid: (ceil(elements / BLOCK),)."""

import triton
import triton.language as tl

__all__ = ["take"]


@triton.jit
def take(
    x_ptr,
    index_ptr,
    y_ptr,
    outer,
    rows,
    limit,
    INNER: tl.constexpr,
    OUTER_STRIDE: tl.constexpr,
    X_STRIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """y [outer, rows, INNER] = x[outer, index, INNER], index [rows]; x's outer parts OUTER_STRIDE apart, its rows X_STRIDE.

    A negative index counts from the end; one outside of the rows reads the nearest one.
    """
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < outer * rows * INNER
    row = i // INNER
    at = tl.load(index_ptr + row % rows, mask=mask, other=0)
    at = tl.where(at < 0, at + limit, at)
    at = tl.minimum(tl.maximum(at, 0), limit - 1)
    tl.store(y_ptr + i, tl.load(x_ptr + (row // rows) * OUTER_STRIDE + at * X_STRIDE + i % INNER, mask=mask, other=0), mask=mask)
