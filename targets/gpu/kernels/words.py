"""Reads the plan's packed weights (runtime/packing.py) as they are: 16 rows ("lanes") stand side by side, so that a row of 16 words of
32 bits is 64 bytes that a warp reads in one piece, and the same bytes serve the CPU and the GPU.

A plane of w bits keeps 32 / w neighbouring columns of a lane in each word: column e of a word lies at bit (e % 4) * 8 + (e // 4) * w.
"""

import triton
import triton.language as tl

__all__ = ["code_at", "codes", "row_scale", "weight_floats"]


@triton.jit
def _plane(w_ptr, base, unit, last, BITS: tl.constexpr, FIRST: tl.constexpr, WIDTH: tl.constexpr, UNITS: tl.constexpr):
    """Columns [32 * unit, 32 * (unit + UNITS)) of one plane: i32 [32 * UNITS, lanes]. base [lanes]: the words' offsets; last: the last
    row.
    """
    i = tl.arange(0, UNITS * WIDTH)
    row = tl.minimum((unit + i // WIDTH) * BITS + FIRST + i % WIDTH, last)
    words = tl.load(w_ptr + base[None, :] + row[:, None] * 16)
    e = tl.arange(0, 32 // WIDTH)
    shift = (e % 4) * 8 + (e // 4) * WIDTH
    part = (words[:, None, :] >> shift[None, :, None]) & ((1 << WIDTH) - 1)
    return part.reshape(UNITS * 32, base.shape[0])


@triton.jit
def codes(w_ptr, base, k, ROWS: tl.constexpr, BITS: tl.constexpr, BLOCK_K: tl.constexpr):
    """Codes of columns [k, k + BLOCK_K), k a multiple of 32, of quantized rows: i32 [BLOCK_K, lanes]. ROWS: rows of words of a block.

    Columns behind the last one are some other column's codes: activations are 0 there.
    """
    UNITS: tl.constexpr = BLOCK_K // 32
    unit = k // 32
    if BITS == 8:
        code = _plane(w_ptr, base, unit, ROWS - 1, BITS, 0, 8, UNITS)
    elif BITS == 6:
        low = _plane(w_ptr, base, unit, ROWS - 1, BITS, 0, 4, UNITS)
        code = low | (_plane(w_ptr, base, unit, ROWS - 1, BITS, 4, 2, UNITS) << 4)
    elif BITS == 5:
        low = _plane(w_ptr, base, unit, ROWS - 1, BITS, 0, 4, UNITS)
        code = low | (_plane(w_ptr, base, unit, ROWS - 1, BITS, 4, 1, UNITS) << 4)
    elif BITS == 4:
        code = _plane(w_ptr, base, unit, ROWS - 1, BITS, 0, 4, UNITS)
    elif BITS == 3:
        low = _plane(w_ptr, base, unit, ROWS - 1, BITS, 0, 2, UNITS)
        code = low | (_plane(w_ptr, base, unit, ROWS - 1, BITS, 2, 1, UNITS) << 2)
    else:
        tl.static_assert(BITS == 2, "no such width")
        code = _plane(w_ptr, base, unit, ROWS - 1, BITS, 0, 2, UNITS)
    return code


@triton.jit
def weight_floats(w_ptr, base, k, ROWS: tl.constexpr, BITS: tl.constexpr, BLOCK_K: tl.constexpr):
    """Columns [k, k + BLOCK_K) of f32 or bf16 rows as f32 [BLOCK_K, lanes]."""
    if BITS == 32:
        row = tl.minimum(k + tl.arange(0, BLOCK_K), ROWS - 1)
        bits = tl.load(w_ptr + base[None, :] + row[:, None] * 16)
    else:
        tl.static_assert(BITS == 16, "no such width")
        row = tl.minimum(k // 2 + tl.arange(0, BLOCK_K // 2), ROWS - 1)
        words = tl.load(w_ptr + base[None, :] + row[:, None] * 16)
        shift = tl.arange(0, 2) * 16
        bits = ((words[:, None, :] >> shift[None, :, None]) << 16).reshape(BLOCK_K, base.shape[0])
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _bits_at(w_ptr, base, k, BITS: tl.constexpr, FIRST: tl.constexpr, WIDTH: tl.constexpr):
    """One plane's part of the code of each column k (any shape)."""
    PER: tl.constexpr = 32 // WIDTH
    within = k % 32
    word = tl.load(w_ptr + base + ((k // 32) * BITS + FIRST + within // PER) * 16)
    e = within % PER
    return (word >> ((e % 4) * 8 + (e // 4) * WIDTH)) & ((1 << WIDTH) - 1)


@triton.jit
def code_at(w_ptr, base, k, BITS: tl.constexpr):
    """The code of each column k, i32, of the row whose words start at `base`; k and base broadcast."""
    if BITS == 8:
        code = _bits_at(w_ptr, base, k, BITS, 0, 8)
    elif BITS == 6:
        code = _bits_at(w_ptr, base, k, BITS, 0, 4) | (_bits_at(w_ptr, base, k, BITS, 4, 2) << 4)
    elif BITS == 5:
        code = _bits_at(w_ptr, base, k, BITS, 0, 4) | (_bits_at(w_ptr, base, k, BITS, 4, 1) << 4)
    elif BITS == 4:
        code = _bits_at(w_ptr, base, k, BITS, 0, 4)
    elif BITS == 3:
        code = _bits_at(w_ptr, base, k, BITS, 0, 2) | (_bits_at(w_ptr, base, k, BITS, 2, 1) << 2)
    else:
        tl.static_assert(BITS == 2, "no such width")
        code = _bits_at(w_ptr, base, k, BITS, 0, 2)
    return code


@triton.jit
def row_scale(s_ptr, block, lane, group, GROUPS: tl.constexpr, TWO_LEVEL: tl.constexpr):
    """The f32 scale of (block, lane) and group; all three broadcast. TWO_LEVEL: a signed byte times the row's bf16, stored before it."""
    if TWO_LEVEL:
        start = block * ((GROUPS + 2) * 16) + lane
        low = tl.load(s_ptr + start).to(tl.int32) & 0xFF
        high = tl.load(s_ptr + start + 16).to(tl.int32)
        row = ((high << 24) | (low << 16)).to(tl.float32, bitcast=True)
        scale = tl.load(s_ptr + start + (group + 2) * 16).to(tl.float32) * row
    else:
        scale = tl.load(s_ptr + block * (GROUPS * 16) + lane + group * 16).to(tl.float32)
    return scale
