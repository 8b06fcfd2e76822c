"""Dynamic quantization of activations to int8, per row or per group of columns. Grid: (rows,)."""

import triton
import triton.language as tl

from mixplan.targets.gpu.kernels.epilogue import quantize_groups

__all__ = ["quantize_act", "store_row"]


@triton.jit
def store_row(y, row, q_ptr, scales_ptr, sums_ptr, KP: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr):
    """y f32 [BLOCK], 0 behind the last column, as q i8 [KP], scales and sums f32 [G] of `row`. GROUP 0: one group."""
    SIZE: tl.constexpr = GROUP if GROUP else BLOCK
    PER: tl.constexpr = BLOCK // SIZE
    GROUPS: tl.constexpr = KP // GROUP if GROUP else 1
    code, scale, total = quantize_groups(y.reshape(1, PER, SIZE))
    k = tl.arange(0, BLOCK)
    tl.store(q_ptr + row * KP + k, code.reshape(BLOCK).to(tl.int8), mask=k < KP)
    g = tl.arange(0, PER)
    tl.store(scales_ptr + row * GROUPS + g, scale.reshape(PER), mask=g < GROUPS)
    tl.store(sums_ptr + row * GROUPS + g, total.reshape(PER), mask=g < GROUPS)


@triton.jit
def quantize_act(
    x_ptr,
    q_ptr,
    scales_ptr,
    sums_ptr,
    K: tl.constexpr,
    KP: tl.constexpr,
    X_STRIDE: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """x f32 [rows, K], rows X_STRIDE apart; BLOCK is a power of two, at least KP."""
    row = tl.program_id(0)
    k = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * X_STRIDE + k, mask=k < K, other=0.0)
    store_row(x, row, q_ptr, scales_ptr, sums_ptr, KP, GROUP, BLOCK)
