"""Linear layers in 8-bit floats (e4m3): activations with a scale per row, weights with a scale per output row.

NATIVE multiplies 8-bit floats where the hardware has
them (sm_89 and later); elsewhere both sides are widened to f16, which holds every e4m3 number.
"""

import triton
import triton.language as tl

from mixplan.targets.gpu.kernels.common import decode_fp8
from mixplan.targets.gpu.kernels.epilogue import finish
from mixplan.targets.gpu.kernels.product import k_range
from mixplan.targets.gpu.kernels.words import codes, row_scale

__all__ = ["gemm_fp8"]


@triton.jit
def _dot(a, b, acc, NATIVE: tl.constexpr, BLOCK_K: tl.constexpr):
    """acc + a [m, k] times b [k, n], both codes in u8."""
    if NATIVE:
        acc = tl.dot(a.to(tl.float8e4nv, bitcast=True), b.to(tl.float8e4nv, bitcast=True), acc, max_num_imprecise_acc=BLOCK_K)
    else:
        acc = tl.dot(decode_fp8(a), decode_fp8(b), acc)
    return acc


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
    GROUP: tl.constexpr,
    NATIVE: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """q u8 [T, KP] e4m3 and qs f32 [T], as `quantize_fp8` makes them; s f32 [BLOCKS, G, 16], BLOCK_K divides GROUP. Outputs as in `finish`.

    Tensor cores that keep fewer than 32 bits of a sum of 8-bit products add it to an f32 after each step.
    """
    tl.static_assert(GROUP == 0 or GROUP % BLOCK_K == 0, "a step must not straddle groups")
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    tile = tl.program_id(1)
    p = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    block = tl.minimum(p // 16, BLOCKS - 1)
    first, steps = k_range(tl.program_id(2), KP, BLOCK_K, SPLIT)
    ROWS: tl.constexpr = KP // 4
    GROUPS: tl.constexpr = KP // GROUP if GROUP else 1
    base = block.to(tl.int64) * (ROWS * 16) + p % 16
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(steps):
        k0 = first + step * BLOCK_K
        k = k0 + tl.arange(0, BLOCK_K)
        q = tl.load(q_ptr + m[:, None] * KP + k[None, :], mask=(m < T)[:, None] & (k < KP)[None, :], other=0)
        code = codes(w_ptr, base, k0, ROWS, 8, BLOCK_K).to(tl.uint8)
        if GROUP:
            part = _dot(q, code, tl.zeros((BLOCK_M, BLOCK_N), tl.float32), NATIVE, BLOCK_K)
            acc += part * row_scale(s_ptr, block, p % 16, k0 // GROUP, GROUPS, False)[None, :]
        else:
            acc = _dot(q, code, acc, NATIVE, BLOCK_K)
    acc *= tl.load(qs_ptr + m, mask=m < T, other=0.0)[:, None]
    if GROUP == 0:
        acc *= row_scale(s_ptr, block, p % 16, 0, 1, False)[None, :]
    if SPLIT == 1:
        finish(acc, m, tile, T, bias_ptr, residual_ptr, y_ptr, scales_ptr, sums_ptr, N, RESIDUAL_STRIDE, GATE, QUANT, BLOCK_M, BLOCK_N)
    else:
        P: tl.constexpr = BLOCKS * 16
        row = tl.program_id(2) * T + m
        tl.store(y_ptr + row.to(tl.int64)[:, None] * P + p[None, :], acc, mask=(m < T)[:, None] & (p < P)[None, :])
