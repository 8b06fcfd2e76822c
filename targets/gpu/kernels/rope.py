"""Rotary position embedding of token-major heads. Grid: (T, H)."""

import triton
import triton.language as tl

__all__ = ["rope"]


@triton.jit
def rope(
    x_ptr,
    cos_ptr,
    sin_ptr,
    y_ptr,
    H: tl.constexpr,
    D: tl.constexpr,
    DR: tl.constexpr,
    X_STRIDE: tl.constexpr,
    HEAD_STRIDE: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """x f32 [T, H, D] (tokens X_STRIDE apart, heads HEAD_STRIDE), cos and sin f32 [T, DR]; y f32 [T, H, D]. BLOCK: a power of two >= D."""
    t = tl.program_id(0)
    h = tl.program_id(1)
    d = tl.arange(0, BLOCK)
    turned = d < DR
    if INTERLEAVED:
        partner = d ^ 1
        sign = tl.where(d % 2 == 0, -1.0, 1.0)
    else:
        partner = tl.where(d < DR // 2, d + DR // 2, d - DR // 2)
        sign = tl.where(d < DR // 2, -1.0, 1.0)
    start = x_ptr + t * X_STRIDE + h * HEAD_STRIDE
    x = tl.load(start + d, mask=d < D, other=0.0)
    other = tl.load(start + partner, mask=turned, other=0.0)
    cos = tl.load(cos_ptr + t * DR + d, mask=turned, other=1.0)
    sin = tl.load(sin_ptr + t * DR + d, mask=turned, other=0.0)
    tl.store(y_ptr + (t * H + h) * D + d, x * cos + sign * other * sin, mask=d < D)
