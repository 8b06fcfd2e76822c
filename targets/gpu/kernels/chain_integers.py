"""Pointwise ops on integers, and on bools where these are more than bits."""

import triton
import triton.language as tl

__all__ = ["integer_binary", "integer_unary"]


@triton.jit
def _divided(a, b):
    """a / b rounded towards 0, and 0 for b = 0."""
    q = a // tl.where((b == 0) | (b == -1), 1, b)
    return tl.where(b == 0, 0, tl.where(b == -1, -a, q)).to(a.dtype)


@triton.jit
def _power(a, b):
    """a to the b, modulo the width; for b < 0 truncated: 0, but for bases of 1 and -1."""
    BITS: tl.constexpr = a.dtype.primitive_bitwidth
    y = (a * 0 + 1).to(a.dtype)
    base, left = a, b
    for _ in range(BITS):
        y = tl.where((left & 1) != 0, y * base, y).to(a.dtype)
        base = (base * base).to(a.dtype)
        left = (left >> 1).to(b.dtype)
    inverse = tl.where(a == 1, 1, tl.where(a == -1, 1 - 2 * (b & 1), 0))
    return tl.where(b < 0, inverse, y).to(a.dtype)


@triton.jit
def integer_unary(x, OP: tl.constexpr):
    """OP of x."""
    if OP == "relu":
        y = tl.where(x < 0, 0, x).to(x.dtype)
    elif OP == "sign":
        y = ((x > 0).to(tl.int32) - (x < 0).to(tl.int32)).to(x.dtype)
    else:
        tl.static_assert(OP == "bitwise_not", "unknown op")
        y = ~x
    return y


@triton.jit
def integer_binary(a, b, OP: tl.constexpr):
    """OP of a and b, of one dtype."""
    BITS: tl.constexpr = a.dtype.primitive_bitwidth
    if OP == "maximum":
        y = tl.where(a > b, a, b)
    elif OP == "minimum":
        y = tl.where(a < b, a, b)
    elif OP == "bitwise_and":
        y = a & b
    elif OP == "bitwise_or":
        y = a | b
    elif OP == "bitwise_xor":
        y = a ^ b
    elif OP == "pow":
        y = _power(a, b)
    elif OP == "floor_div":
        q = _divided(a, b)
        y = tl.where((b != 0) & (q * b != a) & ((a < 0) != (b < 0)), q - 1, q)
    elif OP == "remainder":
        r = tl.where(b == 0, 0, a - _divided(a, b) * b)
        y = tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)
    elif OP == "fmod":
        y = tl.where(b == 0, 0, a - _divided(a, b) * b)
    else:
        outside = (b < 0) | (b >= BITS)
        by = tl.where(outside, 0, b).to(b.dtype)
        if OP == "shift_left":
            y = tl.where(outside, 0, a << by)
        else:
            tl.static_assert(OP == "shift_right", "unknown op")
            y = tl.where(outside, tl.where(a < 0, -1, 0), a >> by)
    return y.to(a.dtype)
