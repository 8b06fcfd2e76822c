"""The k largest of a row and where they stand, the lowest index first among equals: the choice of experts. Grid: (rows,)."""

import triton
import triton.language as tl

__all__ = ["topk"]


@triton.jit
def topk(x_ptr, y_ptr, at_ptr, K: tl.constexpr, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """x f32 [rows, K], free of NaN, to y f32 and at i64 [rows, COUNT]; BLOCK: a power of two above K."""
    row = tl.program_id(0)
    k = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * K + k, mask=k < K, other=float("-inf"))
    free = k < K
    for j in range(COUNT):
        best = tl.max(tl.where(free, x, float("-inf")), axis=0)
        at = tl.min(tl.where(free & (x == best), k, BLOCK), axis=0)
        free = free & (k != at)
        tl.store(y_ptr + row * COUNT + j, best)
        tl.store(at_ptr + row * COUNT + j, at.to(tl.int64))
