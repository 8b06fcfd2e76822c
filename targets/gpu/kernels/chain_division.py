"""Division of f32 numbers with a remainder that is exact, whatever the quotient."""

import triton
import triton.language as tl

__all__ = ["floor_divided", "modulo", "remainder"]


@triton.jit
def modulo(a, b):
    """C's fmod: a - trunc(a / b) * b, with the sign of a.

    28 bits of the quotient at a time, from the highest that two f32 numbers can have (2^277): in f64 a part of 28 bits times b of 24 is
    exact. A part that was rounded up is taken back.
    """
    rest = tl.abs(a).to(tl.float64)
    step = tl.abs(b).to(tl.float64) * 2.0**280
    for _ in range(10):
        step = step * 2.0**-28
        rest = tl.fma(-tl.floor(rest / step), step, rest)
        rest = tl.where(rest < 0.0, rest + step, rest)
    # inf * 0 of the above; what is no number stays none.
    rest = tl.where((tl.abs(b) == float("inf")) & (tl.abs(a) < float("inf")), tl.abs(a).to(tl.float64), rest)
    y = rest.to(tl.float32)
    return tl.where(a.to(tl.int32, bitcast=True) < 0, -y, y)


@triton.jit
def _like(y, b):
    """y, which is 0, with the sign of b."""
    return tl.where(b.to(tl.int32, bitcast=True) < 0, -tl.abs(y), tl.abs(y))


@triton.jit
def remainder(a, b):
    """Python's %: a - floor(a / b) * b, with the sign of b."""
    y = modulo(a, b)
    return tl.where(y == 0.0, _like(y, b), tl.where((y != 0.0) & ((y < 0.0) != (b < 0.0)), y + b, y))


@triton.jit
def floor_divided(a, b):
    """Python's //: the quotient rounded down, from a remainder that is exact; a / 0 as it is."""
    rest = modulo(a, b)
    y = (a - rest) / b
    y = tl.where((rest != 0.0) & ((rest < 0.0) != (b < 0.0)), y - 1.0, y)
    whole = tl.floor(y)
    whole = tl.where(y - whole > 0.5, whole + 1.0, whole)
    y = tl.where(y == 0.0, _like(y, a / b), whole)
    return tl.where(b == 0.0, a / b, y)
