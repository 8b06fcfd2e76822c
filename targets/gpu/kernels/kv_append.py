"""Stores the keys or the values of a step in the pages of the cache. Grid: (T, heads).

A pool is [pages, heads, PAGE, D] in the cache's format. FORMAT: f32, f16, bf16, fp8 (e4m3 in u8), or i8 and i4: unsigned codes as in
runtime/kv_format.py, two of 4 bits in a byte (the even column in the low half), whose scales and minima stand in `parameters` f16
[pages, heads, PAGE, groups, 2].
"""

import triton
import triton.language as tl

from mixplan.targets.gpu.kernels.common import encode_fp8, rint, round_bf16

__all__ = ["kv_append"]


@triton.jit
def kv_append(
    x_ptr,
    pool_ptr,
    parameters_ptr,
    tables_ptr,
    positions_ptr,
    slots_ptr,
    max_pages,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    X_STRIDE: tl.constexpr,
    HEAD_STRIDE: tl.constexpr,
    PAGE: tl.constexpr,
    FORMAT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """x f32 [T, heads, D]; tables i32 [slots, max_pages], positions and slots i32 [T]. BLOCK: a power of two >= D and 32."""
    t = tl.program_id(0)
    h = tl.program_id(1)
    d = tl.arange(0, BLOCK)
    mask = d < D
    x = tl.load(x_ptr + t * X_STRIDE + h * HEAD_STRIDE + d, mask=mask, other=0.0)
    position = tl.load(positions_ptr + t)
    page = tl.load(tables_ptr + tl.load(slots_ptr + t) * max_pages + position // PAGE)
    row = (page.to(tl.int64) * HEADS + h) * PAGE + position % PAGE
    if FORMAT == "i8":
        low = tl.min(tl.where(mask, x, float("inf")), axis=0)
        high = tl.max(tl.where(mask, x, float("-inf")), axis=0)
        scale = ((high - low) / 255.0).to(tl.float16)
        minimum = low.to(tl.float16)
        wide = scale.to(tl.float32)
        inverse = tl.where(wide > 0, 1.0 / wide, 0.0)
        steps = (x - minimum.to(tl.float32)) * inverse
        code = rint(tl.minimum(tl.maximum(steps, 0.0), 255.0))
        tl.store(pool_ptr + row * D + d, code.to(tl.int32).to(tl.uint8), mask=mask)
        tl.store(parameters_ptr + row * 2, scale)
        tl.store(parameters_ptr + row * 2 + 1, minimum)
    elif FORMAT == "i4":
        GROUPS: tl.constexpr = (D + 31) // 32
        low = tl.min(tl.where(mask, x, float("inf")).reshape(BLOCK // 32, 32), axis=1)
        high = tl.max(tl.where(mask, x, float("-inf")).reshape(BLOCK // 32, 32), axis=1)
        scale = ((high - low) / 15.0).to(tl.float16)
        minimum = low.to(tl.float16)
        wide = scale.to(tl.float32)
        inverse = tl.where(wide > 0, 1.0 / wide, 0.0)
        steps = (x.reshape(BLOCK // 32, 32) - minimum.to(tl.float32)[:, None]) * inverse[:, None]
        code = rint(tl.minimum(tl.maximum(steps, 0.0), 15.0)).to(tl.int32)
        even, odd = code.reshape(BLOCK // 2, 2).split()
        pair = tl.arange(0, BLOCK // 2)
        tl.store(pool_ptr + row * ((D + 1) // 2) + pair, (even | (odd << 4)).to(tl.uint8), mask=pair < (D + 1) // 2)
        g = tl.arange(0, BLOCK // 32)
        tl.store(parameters_ptr + (row * GROUPS + g) * 2, scale, mask=g < GROUPS)
        tl.store(parameters_ptr + (row * GROUPS + g) * 2 + 1, minimum, mask=g < GROUPS)
    elif FORMAT == "fp8":
        tl.store(pool_ptr + row * D + d, encode_fp8(x), mask=mask)
    elif FORMAT == "bf16":
        bits = round_bf16(x).to(tl.int32, bitcast=True)
        tl.store(pool_ptr + row * D + d, (bits >> 16).to(tl.int16), mask=mask)
    elif FORMAT == "f16":
        tl.store(pool_ptr + row * D + d, x.to(tl.float16), mask=mask)
    else:
        tl.store(pool_ptr + row * D + d, x, mask=mask)
