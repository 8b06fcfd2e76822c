"""Linear layers on float activations: W4A16, W8A16 and every other packed format, with the epilogue in the same launch.

Grid: (ceil(T / BLOCK_M), ceil(packed rows / BLOCK_N), SPLIT). With SPLIT > 1, for batches too small to fill the GPU, each part of the
columns goes to `partial` f32 [SPLIT, T, packed rows], and `split_sum` adds them up in a fixed order.
"""

import triton
import triton.language as tl

from mixplan.targets.gpu.kernels.epilogue import finish
from mixplan.targets.gpu.kernels.product import float_product, k_range

__all__ = ["gemm_a16"]


@triton.jit
def gemm_a16(
    x_ptr,
    w_ptr,
    s_ptr,
    z_ptr,
    codebook_ptr,
    bias_ptr,
    residual_ptr,
    y_ptr,
    scales_ptr,
    sums_ptr,
    T,
    N: tl.constexpr,
    K: tl.constexpr,
    KP: tl.constexpr,
    BLOCKS: tl.constexpr,
    X_STRIDE: tl.constexpr,
    RESIDUAL_STRIDE: tl.constexpr,
    BITS: tl.constexpr,
    NONUNIFORM: tl.constexpr,
    GROUP: tl.constexpr,
    TWO_LEVEL: tl.constexpr,
    MINIMUM: tl.constexpr,
    GATE: tl.constexpr,
    QUANT: tl.constexpr,
    DOT: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """x f32 [T, K] (rows X_STRIDE apart), w [BLOCKS, rows, 16] words, s [BLOCKS, G, 16], z as s or None; outputs as in `finish`."""
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    tile = tl.program_id(1)
    p = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    block = tl.minimum(p // 16, BLOCKS - 1)
    first, steps = k_range(tl.program_id(2), KP, BLOCK_K, SPLIT)
    ROWS: tl.constexpr = KP * BITS // 32
    GROUPS: tl.constexpr = KP // GROUP if GROUP else 1
    acc = float_product(
        x_ptr,
        m * X_STRIDE,
        m < T,
        w_ptr,
        s_ptr,
        z_ptr,
        codebook_ptr,
        block,
        p % 16,
        first,
        steps,
        K,
        ROWS,
        BITS,
        NONUNIFORM,
        GROUP,
        GROUPS,
        TWO_LEVEL,
        MINIMUM,
        DOT,
        BLOCK_M,
        BLOCK_N,
        BLOCK_K,
    )
    if SPLIT == 1:
        finish(acc, m, tile, T, bias_ptr, residual_ptr, y_ptr, scales_ptr, sums_ptr, N, RESIDUAL_STRIDE, GATE, QUANT, BLOCK_M, BLOCK_N)
    else:
        P: tl.constexpr = BLOCKS * 16
        row = tl.program_id(2) * T + m
        tl.store(y_ptr + row.to(tl.int64)[:, None] * P + p[None, :], acc, mask=(m < T)[:, None] & (p < P)[None, :])
