"""Attention of single tokens over the pages of their sequences: one program for a token, a KV head and a part of the context.

The query heads of a KV head (grouped queries) share each key that is read. Grid: (T, KV heads, SPLITS). With SPLITS > 1 each program keeps
its part's sums, maximum and denominator, which `attention_merge` puts together.
"""

import triton
import triton.language as tl

from mixplan.targets.gpu.kernels.common import dot
from mixplan.targets.gpu.kernels.kv_tile import kv_rows, kv_tile, masked_scores
from mixplan.targets.gpu.kernels.round_queries import round_queries

__all__ = ["attention_decode"]


@triton.jit
def attention_decode(
    q_ptr,
    k_ptr,
    k_parameters_ptr,
    v_ptr,
    v_parameters_ptr,
    tables_ptr,
    positions_ptr,
    slots_ptr,
    sinks_ptr,
    slopes_ptr,
    y_ptr,
    parts_ptr,
    max_pages,
    HQ: tl.constexpr,
    HKV: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    Y_STRIDE: tl.constexpr,
    Q_STRIDE: tl.constexpr,
    HEAD_STRIDE: tl.constexpr,
    SCALE: tl.constexpr,
    CAP: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNKED: tl.constexpr,
    ROUNDED: tl.constexpr,
    FORMAT_K: tl.constexpr,
    FORMAT_V: tl.constexpr,
    DOT: tl.constexpr,
    PAGE: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """q f32 [T, HQ, DK], pools as in `kv_append`; y f32 [T, HQ, DV] (tokens
    Y_STRIDE apart), or with SPLITS > 1 [T, HQ, SPLITS, DV] and parts f32
    [T, HQ, SPLITS, 2] (maximum in units of log 2, denominator). BLOCK_G: a power of two, at least 16 and HQ / HKV; BLOCK_K and BLOCK_V
    cover DK and DV.
    """
    t = tl.program_id(0)
    head = tl.program_id(1)
    part = tl.program_id(2)
    PER: tl.constexpr = HQ // HKV
    g = tl.arange(0, BLOCK_G)
    h = head * PER + g
    dk = tl.arange(0, BLOCK_K)
    dv = tl.arange(0, BLOCK_V)
    live = g < PER
    q = tl.load(q_ptr + t * Q_STRIDE + h[:, None] * HEAD_STRIDE + dk[None, :], mask=live[:, None] & (dk < DK)[None, :], other=0.0)
    if ROUNDED:
        q = round_queries(q)
    position = tl.load(positions_ptr + t)
    slot = tl.load(slots_ptr + t)
    if slopes_ptr is not None:
        slope = tl.load(slopes_ptr + h, mask=live, other=0.0)[:, None]
    else:
        slope = None
    first = position * 0
    if CHUNKED:
        first = position // WINDOW * WINDOW
    elif WINDOW > 0:
        first = tl.maximum(position - WINDOW + 1, 0)
    first = first // BLOCK_N
    blocks = position // BLOCK_N + 1 - first
    each = (blocks + SPLITS - 1) // SPLITS
    start = first + part * each
    stop = tl.minimum(start + each, first + blocks)
    top = tl.full((BLOCK_G,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_G,), tl.float32)
    acc = tl.zeros((BLOCK_G, BLOCK_V), tl.float32)
    for block in range(start, stop):
        n = block * BLOCK_N + tl.arange(0, BLOCK_N)
        seen = n <= position
        rows = kv_rows(tables_ptr, slot, n, seen, head, max_pages, HKV, PAGE)
        keys = kv_tile(k_ptr, k_parameters_ptr, rows, seen, DK, FORMAT_K, BLOCK_K)
        s = dot(q, tl.trans(keys), tl.zeros((BLOCK_G, BLOCK_N), tl.float32), DOT) * SCALE
        s = masked_scores(s, n, position, position + 1, slope, CAP, WINDOW, CHUNKED)
        higher = tl.maximum(top, tl.max(s, axis=1))
        # A row that has seen no key yet has no maximum: exp2(-inf - 0) is 0.
        reference = tl.where(higher == float("-inf"), 0.0, higher)
        p = tl.exp2(s - reference[:, None])
        shrink = tl.exp2(top - reference)
        total = total * shrink + tl.sum(p, axis=1)
        values = kv_tile(v_ptr, v_parameters_ptr, rows, seen, DV, FORMAT_V, BLOCK_V)
        acc = dot(p, values, acc * shrink[:, None], DOT)
        top = higher
    mask = live[:, None] & (dv < DV)[None, :]
    if SPLITS == 1:
        if sinks_ptr is not None:
            sink = tl.load(sinks_ptr + h, mask=live, other=0.0) * 1.4426950408889634
            higher = tl.maximum(top, sink)
            acc *= tl.exp2(top - higher)[:, None]
            total = total * tl.exp2(top - higher) + tl.exp2(sink - higher)
        tl.store(y_ptr + t * Y_STRIDE + h[:, None] * DV + dv[None, :], acc / total[:, None], mask=mask)
    else:
        row = (t * HQ + h) * SPLITS + part
        tl.store(y_ptr + row[:, None] * DV + dv[None, :], acc, mask=mask)
        tl.store(parts_ptr + row * 2, top, mask=live)
        tl.store(parts_ptr + row * 2 + 1, total, mask=live)
