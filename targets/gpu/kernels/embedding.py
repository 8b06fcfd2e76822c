"""Rows of a packed weight by token id. Grid: (T, ceil(K / BLOCK))."""

import triton
import triton.language as tl

from mixplan.targets.gpu.kernels.common import decode_fp8
from mixplan.targets.gpu.kernels.words import code_at, row_scale

__all__ = ["embedding"]


@triton.jit
def embedding(
    ids_ptr,
    w_ptr,
    s_ptr,
    z_ptr,
    codebook_ptr,
    y_ptr,
    N: tl.constexpr,
    K: tl.constexpr,
    KP: tl.constexpr,
    BITS: tl.constexpr,
    NONUNIFORM: tl.constexpr,
    GROUP: tl.constexpr,
    TWO_LEVEL: tl.constexpr,
    MINIMUM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """ids i64 [T], weights as in `gemm_a16`, y f32 [T, K]. An id outside [0, N) reads the nearest row: the host has checked them."""
    t = tl.program_id(0)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = k < K
    k = tl.minimum(k, K - 1)
    row = tl.minimum(tl.maximum(tl.load(ids_ptr + t), 0), N - 1).to(tl.int32)
    block = row // 16
    lane = row % 16
    ROWS: tl.constexpr = KP * BITS // 32
    GROUPS: tl.constexpr = KP // GROUP if GROUP else 1
    base = block.to(tl.int64) * (ROWS * 16) + lane
    if BITS == 32:
        y = tl.load(w_ptr + base + k * 16).to(tl.float32, bitcast=True)
    elif BITS == 16:
        word = tl.load(w_ptr + base + (k // 2) * 16)
        y = ((word >> ((k % 2) * 16)) << 16).to(tl.float32, bitcast=True)
    else:
        code = code_at(w_ptr, base, k, BITS)
        if NONUNIFORM and BITS == 8:
            y = decode_fp8(code).to(tl.float32)
        elif NONUNIFORM:
            y = tl.load(codebook_ptr + code).to(tl.float32)
        else:
            y = code.to(tl.float32)
        if GROUP:
            g = k // GROUP
        else:
            g = k * 0
        s = row_scale(s_ptr, block, lane, g, GROUPS, TWO_LEVEL)
        if z_ptr is None:
            if not NONUNIFORM:
                y -= 1 << (BITS - 1)
            y *= s
        else:
            z = tl.load(z_ptr + block * (GROUPS * 16) + lane + g * 16).to(tl.float32)
            if MINIMUM:
                y = y * s + z
            else:
                y = (y - z) * s
    tl.store(y_ptr + t * K + k, y, mask=mask)
