"""Flash attention (Dao, arXiv:2307.08691) of stretches of tokens over the pages of their sequence. Grid: (stretches, HQ).

A stretch is up to BLOCK_M neighbouring tokens of one sequence, so a ragged step of any mixture is one launch.
"""

import triton
import triton.language as tl

from mixplan.targets.gpu.kernels.common import dot
from mixplan.targets.gpu.kernels.kv_tile import kv_rows, kv_tile, masked_scores
from mixplan.targets.gpu.kernels.round_queries import round_queries

__all__ = ["attention_prefill"]


@triton.jit
def attention_prefill(
    q_ptr,
    k_ptr,
    k_parameters_ptr,
    v_ptr,
    v_parameters_ptr,
    tables_ptr,
    positions_ptr,
    slots_ptr,
    stretches_ptr,
    sinks_ptr,
    slopes_ptr,
    y_ptr,
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
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """stretches i32 [., 2]: first token and number of tokens of each. The rest as in `attention_decode`; y f32 [T, HQ, DV]."""
    start = tl.load(stretches_ptr + tl.program_id(0) * 2)
    count = tl.load(stretches_ptr + tl.program_id(0) * 2 + 1)
    h = tl.program_id(1)
    head = h // (HQ // HKV)
    i = tl.arange(0, BLOCK_M)
    live = i < count
    t = start + tl.where(live, i, 0)
    dk = tl.arange(0, BLOCK_K)
    dv = tl.arange(0, BLOCK_V)
    q = tl.load(q_ptr + t[:, None] * Q_STRIDE + h * HEAD_STRIDE + dk[None, :], mask=live[:, None] & (dk < DK)[None, :], other=0.0)
    if ROUNDED:
        q = round_queries(q)
    lowest = tl.load(positions_ptr + start)
    slot = tl.load(slots_ptr + start)
    position = (lowest + tl.where(live, i, 0))[:, None]
    last = lowest + count
    if slopes_ptr is not None:
        slope = tl.load(slopes_ptr + h)
    else:
        slope = None
    first = lowest * 0
    if CHUNKED:
        first = lowest // WINDOW * WINDOW
    elif WINDOW > 0:
        first = tl.maximum(lowest - WINDOW + 1, 0)
    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_V), tl.float32)
    for block in range(first // BLOCK_N, (last + BLOCK_N - 1) // BLOCK_N):
        n = block * BLOCK_N + tl.arange(0, BLOCK_N)
        seen = n < last
        rows = kv_rows(tables_ptr, slot, n, seen, head, max_pages, HKV, PAGE)
        keys = kv_tile(k_ptr, k_parameters_ptr, rows, seen, DK, FORMAT_K, BLOCK_K)
        s = dot(q, tl.trans(keys), tl.zeros((BLOCK_M, BLOCK_N), tl.float32), DOT) * SCALE
        s = masked_scores(s, n, position, last, slope, CAP, WINDOW, CHUNKED)
        higher = tl.maximum(top, tl.max(s, axis=1))
        # A row that has seen no key yet has no maximum: exp2(-inf - 0) is 0.
        reference = tl.where(higher == float("-inf"), 0.0, higher)
        p = tl.exp2(s - reference[:, None])
        shrink = tl.exp2(top - reference)
        total = total * shrink + tl.sum(p, axis=1)
        values = kv_tile(v_ptr, v_parameters_ptr, rows, seen, DV, FORMAT_V, BLOCK_V)
        acc = dot(p, values, acc * shrink[:, None], DOT)
        top = higher
    if sinks_ptr is not None:
        sink = tl.load(sinks_ptr + h) * 1.4426950408889634
        higher = tl.maximum(top, sink)
        acc *= tl.exp2(top - higher)[:, None]
        total = total * tl.exp2(top - higher) + tl.exp2(sink - higher)
    y = acc / total[:, None]
    tl.store(y_ptr + t[:, None] * Y_STRIDE + h * DV + dv[None, :], y, mask=live[:, None] & (dv < DV)[None, :])
