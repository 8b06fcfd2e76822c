"""Linear layers in 8-bit floats (e4m3): activations with a scale per row, weights with a scale per output row.

The weight's bytes stand as those of the packed i8 format, [BLOCKS, KP / 4, 16, 4]. NATIVE multiplies 8-bit floats where the hardware has
them (sm_89 and later); elsewhere both sides are widened to f16, which holds every e4m3 number.
"""

import triton
import triton.language as tl

from mixplan.targets.gpu.kernels.common import decode_fp8
from mixplan.targets.gpu.kernels.epilogue import finish
from mixplan.targets.gpu.kernels.product import k_range
from mixplan.targets.gpu.kernels.words import codes

__all__ = ["gemm_fp8"]


@triton.jit
def gemm_fp8(
    q_ptr,
    qs_ptr,
    w_ptr,
    s_ptr,
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
    GATE: tl.constexpr,
    QUANT: tl.constexpr,
    NATIVE: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """q u8 [T, KP] e4m3 and qs f32 [T], as `quantize_fp8` makes them; s f32 [BLOCKS, 1, 16]. Outputs as in `finish`."""
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    tile = tl.program_id(1)
    p = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    block = tl.minimum(p // 16, BLOCKS - 1)
    first, steps = k_range(tl.program_id(2), KP, BLOCK_K, SPLIT)
    ROWS: tl.constexpr = KP // 4
    base = block.to(tl.int64) * (ROWS * 16) + p % 16
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(steps):
        k0 = first + step * BLOCK_K
        k = k0 + tl.arange(0, BLOCK_K)
        q = tl.load(q_ptr + m[:, None] * KP + k[None, :], mask=(m < T)[:, None] & (k < KP)[None, :], other=0)
        code = codes(w_ptr, base, k0, ROWS, 8, BLOCK_K).to(tl.uint8)
        if NATIVE:
            acc = tl.dot(q.to(tl.float8e4nv, bitcast=True), code.to(tl.float8e4nv, bitcast=True), acc)
        else:
            acc = tl.dot(decode_fp8(q), decode_fp8(code), acc)
    acc *= tl.load(qs_ptr + m, mask=m < T, other=0.0)[:, None] * tl.load(s_ptr + block * 16 + p % 16)[None, :]
    if SPLIT == 1:
        finish(acc, m, tile, T, bias_ptr, residual_ptr, y_ptr, scales_ptr, sums_ptr, N, RESIDUAL_STRIDE, GATE, QUANT, BLOCK_M, BLOCK_N)
    else:
        P: tl.constexpr = BLOCKS * 16
        row = tl.program_id(2) * T + m
        tl.store(y_ptr + row.to(tl.int64)[:, None] * P + p[None, :], acc, mask=(m < T)[:, None] & (p < P)[None, :])
