"""Puts together what the splits of `attention_decode` found. Grid: (T, HQ)."""

import triton
import triton.language as tl

__all__ = ["attention_merge"]


@triton.jit
def attention_merge(
    acc_ptr,
    parts_ptr,
    sinks_ptr,
    y_ptr,
    HQ: tl.constexpr,
    DV: tl.constexpr,
    Y_STRIDE: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """acc f32 [T, HQ, SPLITS, DV], parts f32 [T, HQ, SPLITS, 2], sinks f32 [HQ] or None; y f32 [T, HQ, DV], tokens Y_STRIDE apart.
    SPLITS: a power of two.
    """
    h = tl.program_id(1)
    row = tl.program_id(0) * HQ + h
    part = tl.arange(0, SPLITS)
    d = tl.arange(0, BLOCK_V)
    top = tl.load(parts_ptr + (row * SPLITS + part) * 2)
    total = tl.load(parts_ptr + (row * SPLITS + part) * 2 + 1)
    higher = tl.max(top, axis=0)
    if sinks_ptr is not None:
        sink = tl.load(sinks_ptr + h) * 1.4426950408889634
        higher = tl.maximum(higher, sink)
    weight = tl.exp2(top - higher)
    acc = tl.load(acc_ptr + (row * SPLITS + part)[:, None] * DV + d[None, :], mask=(d < DV)[None, :], other=0.0)
    denominator = tl.sum(weight * total, axis=0)
    if sinks_ptr is not None:
        denominator += tl.exp2(sink - higher)
    tl.store(y_ptr + tl.program_id(0) * Y_STRIDE + h * DV + d, tl.sum(weight[:, None] * acc, axis=0) / denominator, mask=d < DV)
