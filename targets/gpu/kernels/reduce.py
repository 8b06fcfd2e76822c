"""Sums, means and extremes over one axis. Grid: (ceil(outputs / BLOCK),)."""

import triton
import triton.language as tl

__all__ = ["reduce"]


@triton.jit
def reduce(x_ptr, y_ptr, outer, SIZE: tl.constexpr, INNER: tl.constexpr, OP: tl.constexpr, BLOCK: tl.constexpr):
    """x f32 [outer, SIZE, INNER] to y f32 [outer, INNER]; OP is sum, mean, amax or amin."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < outer * INNER
    start = x_ptr + (i // INNER) * (SIZE * INNER) + i % INNER
    y = tl.load(start, mask=mask, other=0.0)
    for j in range(1, SIZE):
        x = tl.load(start + j * INNER, mask=mask, other=0.0)
        if OP == "amax":
            y = tl.maximum(y, x, propagate_nan=tl.PropagateNan.ALL)
        elif OP == "amin":
            y = tl.minimum(y, x, propagate_nan=tl.PropagateNan.ALL)
        else:
            y += x
    if OP == "mean":
        y = y / SIZE
    tl.store(y_ptr + i, y, mask=mask)
