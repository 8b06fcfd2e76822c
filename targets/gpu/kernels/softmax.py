"""Softmax and its logarithm over the last dim. Grid: (rows,)."""

import triton
import triton.language as tl

__all__ = ["softmax"]


@triton.jit
def softmax(x_ptr, y_ptr, K: tl.constexpr, LOG: tl.constexpr, BLOCK: tl.constexpr):
    """x f32 [rows, K] to y; BLOCK: a power of two >= K."""
    row = tl.program_id(0)
    k = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * K + k, mask=k < K, other=float("-inf"))
    x = x - tl.max(x, axis=0)
    e = tl.exp(x)
    if LOG:
        y = x - tl.log(tl.sum(e, axis=0))
    else:
        y = e / tl.sum(e, axis=0)
    tl.store(y_ptr + row * K + k, y, mask=k < K)
