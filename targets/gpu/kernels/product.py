"""Products of rows with packed weights: the loop over the columns that the matrix kernels share."""

import triton
import triton.language as tl

from mixplan.targets.gpu.kernels.common import decode_fp8, dot
from mixplan.targets.gpu.kernels.words import codes, row_scale, weight_floats

__all__ = ["float_product", "integer_product", "k_range"]


@triton.jit
def k_range(part, KP: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT: tl.constexpr):
    """First column and number of steps of split `part`: the steps over KP columns, shared out among SPLIT programs."""
    STEPS: tl.constexpr = (KP + BLOCK_K - 1) // BLOCK_K
    EACH: tl.constexpr = (STEPS + SPLIT - 1) // SPLIT
    first = part * EACH
    return first * BLOCK_K, tl.maximum(tl.minimum(STEPS - first, EACH), 0)


@triton.jit
def _values(code, codebook_ptr, BITS: tl.constexpr, NONUNIFORM: tl.constexpr):
    """The numbers that codes multiply with: those of e4m3, the codebook's, or the codes, of which the zero has yet to be taken off."""
    if NONUNIFORM and BITS == 8:
        value = decode_fp8(code)
    elif NONUNIFORM:
        value = tl.load(codebook_ptr + code).to(tl.int32)
    else:
        value = code
    return value


@triton.jit
def float_product(
    x_ptr,
    row,
    seen,
    w_ptr,
    s_ptr,
    z_ptr,
    codebook_ptr,
    block,
    lane,
    k_first,
    steps,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    BITS: tl.constexpr,
    NONUNIFORM: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    TWO_LEVEL: tl.constexpr,
    MINIMUM: tl.constexpr,
    DOT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """x times transposed packed rows, f32 [BLOCK_M, BLOCK_N].

    row [BLOCK_M]: offset of each row of x, of which `seen` says whether it counts. block, lane [BLOCK_N]: where the packed rows stand.
    A code with its zero point taken off is exact in bf16. With a scale per group the weight is scaled before it is rounded to DOT; with one
    per row the product is scaled.
    """
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    base = block.to(tl.int64) * (ROWS * 16) + lane
    PER_ROW: tl.constexpr = GROUP == 0 and BITS <= 8
    MIDDLE: tl.constexpr = 1 << (BITS - 1) if BITS <= 8 else 0
    if PER_ROW:
        scale = row_scale(s_ptr, block, lane, 0, 1, False)
        if z_ptr is not None:
            zero = tl.load(z_ptr + block * 16 + lane).to(tl.float32)
    for step in range(steps):
        k0 = k_first + step * BLOCK_K
        k = k0 + tl.arange(0, BLOCK_K)
        x = tl.load(x_ptr + row[:, None] + k[None, :], mask=seen[:, None] & (k < K)[None, :], other=0.0)
        if BITS > 8:
            w = weight_floats(w_ptr, base, k0, ROWS, BITS, BLOCK_K)
        else:
            w = _values(codes(w_ptr, base, k0, ROWS, BITS, BLOCK_K), codebook_ptr, BITS, NONUNIFORM).to(tl.float32)
            if PER_ROW:
                if z_ptr is None:
                    if not NONUNIFORM:
                        w -= MIDDLE
                elif MINIMUM:
                    w = w * scale[None, :] + zero[None, :]
                else:
                    w -= zero[None, :]
            else:
                SIZE: tl.constexpr = GROUP if GROUP < BLOCK_K else BLOCK_K
                PER: tl.constexpr = BLOCK_K // SIZE
                group = tl.minimum(k0 // GROUP + tl.arange(0, PER), GROUPS - 1)
                s = row_scale(s_ptr, block[None, :], lane[None, :], group[:, None], GROUPS, TWO_LEVEL)
                w = w.reshape(PER, SIZE, BLOCK_N)
                if z_ptr is None:
                    if not NONUNIFORM:
                        w -= MIDDLE
                    w = w * s[:, None, :]
                else:
                    z = tl.load(z_ptr + block[None, :] * (GROUPS * 16) + lane[None, :] + group[:, None] * 16).to(tl.float32)
                    if MINIMUM:
                        w = w * s[:, None, :] + z[:, None, :]
                    else:
                        w = (w - z[:, None, :]) * s[:, None, :]
                w = w.reshape(BLOCK_K, BLOCK_N)
        acc = dot(x, w, acc, DOT)
    if PER_ROW and not (MINIMUM and z_ptr is not None):
        acc = acc * scale[None, :]
    return acc


@triton.jit
def integer_product(
    q_ptr,
    qs_ptr,
    sums_ptr,
    m,
    seen,
    w_ptr,
    s_ptr,
    z_ptr,
    codebook_ptr,
    block,
    lane,
    k_first,
    steps,
    KP: tl.constexpr,
    ROWS: tl.constexpr,
    BITS: tl.constexpr,
    NONUNIFORM: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    TWO_LEVEL: tl.constexpr,
    MINIMUM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Rows m of q i8 [T, KP] times transposed packed rows, in exact integers, f32 [BLOCK_M, BLOCK_N]: see `linear_q` in runtime/ops.

    Unsigned codes become signed ones by taking off the middle code c, so that dot(codes, q) = dot(codes - c, q) + c * sum(q). With groups,
    BLOCK_K divides GROUP.
    """
    tl.static_assert(GROUP == 0 or GROUP % BLOCK_K == 0, "a step must not straddle groups")
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.int32)
    base = block.to(tl.int64) * (ROWS * 16) + lane
    MIDDLE: tl.constexpr = 0 if NONUNIFORM else 1 << (BITS - 1)
    for step in range(steps):
        k0 = k_first + step * BLOCK_K
        k = k0 + tl.arange(0, BLOCK_K)
        q = tl.load(q_ptr + m[:, None] * KP + k[None, :], mask=seen[:, None] & (k < KP)[None, :], other=0)
        code = codes(w_ptr, base, k0, ROWS, BITS, BLOCK_K)
        w = (_values(code, codebook_ptr, BITS, NONUNIFORM) - MIDDLE).to(tl.int8)
        if GROUP == 0:
            total = tl.dot(q, w, total, out_dtype=tl.int32)
        else:
            part = tl.dot(q, w, out_dtype=tl.int32).to(tl.float32)
            g = k0 // GROUP
            s = row_scale(s_ptr, block, lane, g, GROUPS, TWO_LEVEL)
            qs = tl.load(qs_ptr + m * GROUPS + g, mask=seen, other=0.0)
            acc += part * qs[:, None] * s[None, :]
            if z_ptr is not None:
                # The sum of q is the group's, so it counts in the first of its steps only.
                once = tl.where(k0 % GROUP == 0, 1.0, 0.0)
                sums = tl.load(sums_ptr + m * GROUPS + g, mask=seen, other=0.0) * once
                z = tl.load(z_ptr + block * (GROUPS * 16) + lane + g * 16).to(tl.float32)
                if MINIMUM:
                    acc += sums[:, None] * (z + MIDDLE * s)[None, :]
                else:
                    acc += sums[:, None] * ((MIDDLE - z) * s)[None, :]
    if GROUP == 0:
        s = row_scale(s_ptr, block, lane, 0, 1, False)
        qs = tl.load(qs_ptr + m, mask=seen, other=0.0)
        acc = total.to(tl.float32) * qs[:, None] * s[None, :]
        if z_ptr is not None:
            z = tl.load(z_ptr + block * 16 + lane).to(tl.float32)
            sums = tl.load(sums_ptr + m, mask=seen, other=0.0)
            # With the columns split, only the first part has the sum of q.
            sums = tl.where(k_first == 0, sums, 0.0)
            if MINIMUM:
                acc += sums[:, None] * (z + MIDDLE * s)[None, :]
            else:
                acc += sums[:, None] * ((MIDDLE - z) * s)[None, :]
    return acc
