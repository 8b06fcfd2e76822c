"""Reads keys or values of a sequence out of the pages of the cache."""

import triton
import triton.language as tl

from mixplan.targets.gpu.kernels.common import decode_fp8

__all__ = ["kv_rows", "kv_tile", "masked_scores"]


@triton.jit
def kv_rows(tables_ptr, slot, n, seen, head, max_pages, HEADS: tl.constexpr, PAGE: tl.constexpr):
    """The pool row of each position n of a slot; i64."""
    page = tl.load(tables_ptr + slot * max_pages + n // PAGE, mask=seen, other=0)
    return (page.to(tl.int64) * HEADS + head) * PAGE + n % PAGE


@triton.jit
def kv_tile(pool_ptr, parameters_ptr, rows, seen, D: tl.constexpr, FORMAT: tl.constexpr, BLOCK: tl.constexpr):
    """Rows [n] of a pool as floats [n, BLOCK] (f16, but f32 for bf16 and f32), 0 where not `seen` or behind D."""
    d = tl.arange(0, BLOCK)
    at = pool_ptr + rows[:, None] * D + d[None, :]
    mask = seen[:, None] & (d < D)[None, :]
    if FORMAT == "i8":
        code = tl.load(at, mask=mask, other=0).to(tl.float32)
        scale = tl.load(parameters_ptr + rows * 2, mask=seen, other=0.0).to(tl.float32)
        minimum = tl.load(parameters_ptr + rows * 2 + 1, mask=seen, other=0.0).to(tl.float32)
        tile = tl.where((d < D)[None, :], scale[:, None] * code + minimum[:, None], 0.0).to(tl.float16)
    elif FORMAT == "i4":
        GROUPS: tl.constexpr = (D + 31) // 32
        byte = tl.load(pool_ptr + rows[:, None] * ((D + 1) // 2) + (d // 2)[None, :], mask=mask, other=0).to(tl.int32)
        code = ((byte >> ((d % 2) * 4)[None, :]) & 15).to(tl.float32)
        group = (rows[:, None] * GROUPS + (d // 32)[None, :]) * 2
        scale = tl.load(parameters_ptr + group, mask=mask, other=0.0).to(tl.float32)
        minimum = tl.load(parameters_ptr + group + 1, mask=mask, other=0.0).to(tl.float32)
        tile = (scale * code + minimum).to(tl.float16)
    elif FORMAT == "fp8":
        tile = decode_fp8(tl.load(at, mask=mask, other=0))
    elif FORMAT == "bf16":
        bits = tl.load(at, mask=mask, other=0).to(tl.int32) << 16
        tile = bits.to(tl.float32, bitcast=True)
    else:
        tile = tl.load(at, mask=mask, other=0.0)
    return tile


@triton.jit
def masked_scores(s, n, position, last, slope, CAP: tl.constexpr, WINDOW: tl.constexpr, CHUNKED: tl.constexpr):
    """Scores s [m, n] after softcap, ALiBi and mask, in units of log 2 of the softmax: keys at n, queries at position [m, 1].

    Keys from `last` on are no keys. slope: f32, broadcast, or None.
    """
    if CAP > 0.0:
        s = CAP * (1.0 - 2.0 / (tl.exp(2.0 / CAP * s) + 1.0))
    distance = position - n[None, :]
    if slope is not None:
        s -= slope * distance.to(tl.float32)
    seen = (distance >= 0) & (n < last)[None, :]
    if CHUNKED:
        seen = seen & (position // WINDOW == (n // WINDOW)[None, :])
    elif WINDOW > 0:
        seen = seen & (distance < WINDOW)
    return tl.where(seen, s * 1.4426950408889634, float("-inf"))
