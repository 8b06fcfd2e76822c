"""Linear layers on int8 activations (W8A8, W4A8 and the other integer and nonuniform formats) on integer tensor cores.

The grid and the split form are those of `gemm_a16`.
"""

import triton
import triton.language as tl

from mixplan.targets.gpu.kernels.epilogue import finish
from mixplan.targets.gpu.kernels.product import integer_product, k_range

__all__ = ["gemm_a8"]


@triton.jit
def gemm_a8(
    q_ptr,
    qs_ptr,
    qsums_ptr,
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
    KP: tl.constexpr,
    BLOCKS: tl.constexpr,
    RESIDUAL_STRIDE: tl.constexpr,
    BITS: tl.constexpr,
    NONUNIFORM: tl.constexpr,
    GROUP: tl.constexpr,
    TWO_LEVEL: tl.constexpr,
    MINIMUM: tl.constexpr,
    GATE: tl.constexpr,
    QUANT: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """q i8 [T, KP], qs and qsums f32 [T, G]: what `quantize_act` made; weights as in `gemm_a16`."""
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    tile = tl.program_id(1)
    p = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    block = tl.minimum(p // 16, BLOCKS - 1)
    first, steps = k_range(tl.program_id(2), KP, BLOCK_K, SPLIT)
    ROWS: tl.constexpr = KP * BITS // 32
    GROUPS: tl.constexpr = KP // GROUP if GROUP else 1
    acc = integer_product(
        q_ptr,
        qs_ptr,
        qsums_ptr,
        m,
        m < T,
        w_ptr,
        s_ptr,
        z_ptr,
        codebook_ptr,
        block,
        p % 16,
        first,
        steps,
        KP,
        ROWS,
        BITS,
        NONUNIFORM,
        GROUP,
        GROUPS,
        TWO_LEVEL,
        MINIMUM,
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
