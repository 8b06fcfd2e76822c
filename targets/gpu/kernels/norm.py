"""RMSNorm and LayerNorm over rows, with an optional residual before it and an optional quantization after it. Grid: (rows,)."""

import triton
import triton.language as tl

from mixplan.targets.gpu.kernels.quantize_act import store_row

__all__ = ["norm"]


@triton.jit
def norm(
    x_ptr,
    residual_ptr,
    weight_ptr,
    bias_ptr,
    sum_ptr,
    y_ptr,
    scales_ptr,
    sums_ptr,
    K: tl.constexpr,
    KP: tl.constexpr,
    HEADS: tl.constexpr,
    X_STRIDE: tl.constexpr,
    HEAD_STRIDE: tl.constexpr,
    CENTRED: tl.constexpr,
    EPS: tl.constexpr,
    QUANTIZED: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Row r is K numbers from r // HEADS * X_STRIDE + r % HEADS * HEAD_STRIDE; outputs are contiguous.

    residual f32 [rows, K] or None is added first, and the sum kept in `sum` where that is not None. CENTRED: LayerNorm. y f32 [rows, K], or
    with QUANTIZED q i8 [rows, KP], scales and sums as in `quantize_act` with GROUP.
    """
    row = tl.program_id(0)
    k = tl.arange(0, BLOCK)
    mask = k < K
    x = tl.load(x_ptr + (row // HEADS) * X_STRIDE + (row % HEADS) * HEAD_STRIDE + k, mask=mask, other=0.0)
    if residual_ptr is not None:
        x += tl.load(residual_ptr + row * K + k, mask=mask, other=0.0)
        if sum_ptr is not None:
            tl.store(sum_ptr + row * K + k, x, mask=mask)
    if CENTRED:
        x = tl.where(mask, x - tl.sum(x, axis=0) / K, 0.0)
    y = x * (1.0 / tl.sqrt(tl.sum(x * x, axis=0) / K + EPS))
    if weight_ptr is not None:
        y *= tl.load(weight_ptr + k, mask=mask, other=0.0)
    if bias_ptr is not None:
        y += tl.load(bias_ptr + k, mask=mask, other=0.0)
    if QUANTIZED:
        store_row(y, row, y_ptr, scales_ptr, sums_ptr, KP, GROUP, BLOCK)
    else:
        tl.store(y_ptr + row * K + k, y, mask=mask)
