"""Adds up the parts of a split product, always in the same order, and applies its epilogue."""

import triton
import triton.language as tl

from mixplan.targets.gpu.kernels.epilogue import finish

__all__ = ["split_sum"]


@triton.jit
def split_sum(
    partial_ptr,
    bias_ptr,
    residual_ptr,
    y_ptr,
    scales_ptr,
    sums_ptr,
    T,
    N: tl.constexpr,
    BLOCKS: tl.constexpr,
    RESIDUAL_STRIDE: tl.constexpr,
    GATE: tl.constexpr,
    QUANT: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """partial f32 [SPLIT, T, 16 * BLOCKS]. Grid: (ceil(T / BLOCK_M), ceil(packed rows / BLOCK_N))."""
    P: tl.constexpr = BLOCKS * 16
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    tile = tl.program_id(1)
    p = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = (m < T)[:, None] & (p < P)[None, :]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for part in range(SPLIT):
        row = (part * T + m).to(tl.int64)
        acc += tl.load(partial_ptr + row[:, None] * P + p[None, :], mask=mask, other=0.0)
    finish(acc, m, tile, T, bias_ptr, residual_ptr, y_ptr, scales_ptr, sums_ptr, N, RESIDUAL_STRIDE, GATE, QUANT, BLOCK_M, BLOCK_N)
