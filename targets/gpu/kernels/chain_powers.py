"""Powers and angles of f32 numbers."""

import triton
import triton.language as tl

__all__ = ["arctangent", "power"]


@triton.jit
def power(a, b):
    """a to the b, in f64, so that the product with the logarithm costs no digits. C's special cases."""
    size = tl.abs(a).to(tl.float64)
    exponent = b.to(tl.float64)
    y = tl.exp2(exponent * tl.log2(size)).to(tl.float32)
    y = tl.where((tl.abs(a) == 1.0) & (b == b), 1.0, y)
    half = b * 0.5
    whole = tl.floor(b) == b
    odd = whole & (tl.floor(half) != half) & (tl.abs(b) < float("inf"))
    negative = a.to(tl.int32, bitcast=True) < 0
    y = tl.where(negative & odd, -y, y)
    # No real number, unless the base is 0 or infinite.
    y = tl.where((a < 0.0) & (a > float("-inf")) & (whole == 0), float("nan"), y)
    return tl.where((a == 1.0) | (b == 0.0), 1.0, y)


@triton.jit
def arctangent(a, b):
    """The angle of the point (b, a): by the Taylor series of the arctangent below tan(pi / 8), above of what is left of pi / 4."""
    rise, run = tl.abs(a), tl.abs(b)
    most = tl.maximum(rise, run)
    least = tl.minimum(rise, run)
    t = tl.where(most == 0.0, 0.0, tl.where(least == float("inf"), 1.0, least / most))
    far = t > 0.41421357
    t = tl.where(far, (t - 1.0) / (t + 1.0), t)
    z = t * t
    s = 0.0 * z
    for back in tl.static_range(11):
        s = 1.0 / (21 - 2 * back) - z * s
    y = t * s + tl.where(far, 0.7853981633974483, 0.0)
    y = tl.where(rise > run, 1.5707963267948966 - y, y)
    y = tl.where(b.to(tl.int32, bitcast=True) < 0, 3.141592653589793 - y, y)
    y = tl.where((a != a) | (b != b), float("nan"), y)
    return tl.where(a.to(tl.int32, bitcast=True) < 0, -y, y)
