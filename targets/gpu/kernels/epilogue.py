"""What follows a product in the same kernel: bias, gate, residual, and the quantization of the result to int8."""

import triton
import triton.language as tl

from mixplan.targets.gpu.kernels.common import activate, rint

__all__ = ["finish", "quantize_groups", "store_quantized"]


@triton.jit
def quantize_groups(y):
    """y f32 [m, groups, size] as (codes f32, scales [m, groups], sums [m, groups]), as `quantize_act` in runtime/packing.py."""
    largest = tl.max(tl.abs(y), axis=2)
    scale = tl.where(largest < 7.888609052210118e-31, 1.0, largest / 127.0)
    code = rint(tl.minimum(tl.maximum(y * (1.0 / scale)[:, :, None], -127.0), 127.0))
    return code, scale, scale * tl.sum(code, axis=2)


@triton.jit
def store_quantized(
    y, m, first, T, q_ptr, scales_ptr, sums_ptr, N: tl.constexpr, GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    """Columns [first, first + BLOCK_N) of rows m as q i8 [T, Np], scales and sums f32 [T, G]; y f32 [BLOCK_M, BLOCK_N], 0 behind column
    N.
    """
    PER: tl.constexpr = BLOCK_N // GROUP
    GROUPS: tl.constexpr = (N + GROUP - 1) // GROUP
    code, scale, total = quantize_groups(y.reshape(BLOCK_M, PER, GROUP))
    n = first + tl.arange(0, BLOCK_N)
    mask = (m < T)[:, None] & (n < GROUPS * GROUP)[None, :]
    tl.store(q_ptr + m[:, None] * (GROUPS * GROUP) + n[None, :], code.reshape(BLOCK_M, BLOCK_N).to(tl.int8), mask=mask)
    g = first // GROUP + tl.arange(0, PER)
    mask = (m < T)[:, None] & (g < GROUPS)[None, :]
    tl.store(scales_ptr + m[:, None] * GROUPS + g[None, :], scale, mask=mask)
    tl.store(sums_ptr + m[:, None] * GROUPS + g[None, :], total, mask=mask)


@triton.jit
def finish(
    acc,
    m,
    tile,
    T,
    bias_ptr,
    residual_ptr,
    y_ptr,
    scales_ptr,
    sums_ptr,
    N: tl.constexpr,
    RESIDUAL_STRIDE: tl.constexpr,
    GATE: tl.constexpr,
    QUANT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Make the outputs of rows m [BLOCK_M] and packed rows [tile * BLOCK_N, ..) of acc f32 [BLOCK_M, BLOCK_N], and store them.

    GATE "": y = acc + bias + residual, f32 [T, N]. Else acc has gate and up in alternating blocks of 16, bias is [2, N], and
    y = GATE(gate + bias[0]) * (up + bias[1]). QUANT: the group of quantized outputs, 0 for f32 ones.
    """
    if GATE == "":
        WIDTH: tl.constexpr = BLOCK_N
        n = tile * WIDTH + tl.arange(0, WIDTH)
        y = acc
        if bias_ptr is not None:
            y += tl.load(bias_ptr + n, mask=n < N, other=0.0)[None, :]
    else:
        WIDTH: tl.constexpr = BLOCK_N // 2
        n = tile * WIDTH + tl.arange(0, WIDTH)
        pairs = acc.reshape(BLOCK_M, WIDTH // 16, 2, 16).permute(0, 1, 3, 2).reshape(BLOCK_M, WIDTH, 2)
        gate, up = pairs.split()
        if bias_ptr is not None:
            gate += tl.load(bias_ptr + n, mask=n < N, other=0.0)[None, :]
            up += tl.load(bias_ptr + N + n, mask=n < N, other=0.0)[None, :]
        y = activate(gate, GATE) * up
    mask = (m < T)[:, None] & (n < N)[None, :]
    if residual_ptr is not None:
        y += tl.load(residual_ptr + m[:, None] * RESIDUAL_STRIDE + n[None, :], mask=mask, other=0.0)
    if QUANT == 0:
        tl.store(y_ptr + m[:, None] * N + n[None, :], y, mask=mask)
    else:
        y = tl.where((n < N)[None, :], y, 0.0)
        store_quantized(y, m, tile * WIDTH, T, y_ptr, scales_ptr, sums_ptr, N, QUANT, BLOCK_M, WIDTH)
