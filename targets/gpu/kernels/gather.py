"""Elements of rows by index: torch.gather along the last dim. Grid: (ceil(elements / BLOCK),)."""

import triton
import triton.language as tl

__all__ = ["gather"]


@triton.jit
def gather(x_ptr, index_ptr, y_ptr, outer, SIZE: tl.constexpr, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """y [outer, COUNT] = x [outer, SIZE] at index i64 [outer, COUNT], each in [0, SIZE)."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < outer * COUNT
    at = tl.load(index_ptr + i, mask=mask, other=0)
    at = tl.minimum(tl.maximum(at, 0), SIZE - 1)
    tl.store(y_ptr + i, tl.load(x_ptr + (i // COUNT) * SIZE + at, mask=mask, other=0), mask=mask)
