"""Device functions that kernels share: products, rounding, activations, 8-bit floats.

The interpreter multiplies bfloat16 as the integers that hold it, and truncates when it narrows. So DOT "bf16i" rounds by integer
arithmetic, as the hardware does, and multiplies in f32: what the interpreter computes is then what a GPU computes, but for the order of the
sums.
"""

import triton
import triton.language as tl

__all__ = ["activate", "cosine", "decode_fp8", "dot", "encode_fp8", "rint", "round_bf16", "sine", "tanh"]


@triton.jit
def rint(x):
    """x f32, |x| < 2^22, to the nearest integer, half to even: beyond 1.5 * 2^23 there is no room for a fraction."""
    return (x + 12582912.0) - 12582912.0


@triton.jit
def round_bf16(x):
    """x as f32 that a bfloat16 holds, to nearest even."""
    bits = x.to(tl.float32).to(tl.int32, bitcast=True)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def dot(a, b, acc, DOT: tl.constexpr):
    """acc f32 + a [m, k] times b [k, n], both rounded to DOT first: f32, f16, bf16, or bf16i (bf16 in the interpreter)."""
    if DOT == "f32":
        acc = tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")
    elif DOT == "f16":
        acc = tl.dot(a.to(tl.float16), b.to(tl.float16), acc)
    elif DOT == "bf16":
        acc = tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), acc)
    else:
        acc = tl.dot(round_bf16(a), round_bf16(b), acc, input_precision="ieee")
    return acc


@triton.jit
def tanh(x):
    """1 - 2 / (exp(2x) + 1): right to 1e-7, absolutely, and free of overflow."""
    return 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)


@triton.jit
def activate(x, NAME: tl.constexpr):
    """The activation called NAME, as in runtime/ops/activations.py, of x f32."""
    if NAME == "silu":
        x = x / (1.0 + tl.exp(-x))
    elif NAME == "gelu":
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif NAME == "gelu_tanh":
        x = 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
    elif NAME == "relu":
        x = tl.where(x < 0.0, 0.0, x)
    elif NAME == "sigmoid":
        x = 1.0 / (1.0 + tl.exp(-x))
    elif NAME == "relu2":
        x = tl.where(x < 0.0, 0.0, x)
        x = x * x
    elif NAME == "tanh":
        x = tanh(x)
    else:
        tl.static_assert(False, "unknown activation")
    return x


@triton.jit
def _quadrant(x):
    """(n, r) with x = n * pi / 2 + r: pi / 2 in three parts, so that r is right to 1e-7 for |x| < 2e5 (Cody and Waite, 1980)."""
    n = rint(x * 0.6366197723675814)
    r = tl.fma(-n, 1.5703125, x)
    r = tl.fma(-n, 4.837512969970703e-04, r)
    r = tl.fma(-n, 7.549789948768648e-08, r)
    return n.to(tl.int32), r


@triton.jit
def _sine_of(n, r):
    """sin(r + n * pi / 2) for |r| <= pi / 4, by Taylor polynomials (their next terms are below 1e-8)."""
    z = r * r
    s = r + r * z * (-1.6666667e-01 + z * (8.3333310e-03 + z * (-1.9841271e-04 + z * 2.7557319e-06)))
    c = 1.0 + z * (-0.5 + z * (4.1666668e-02 + z * (-1.3888889e-03 + z * 2.4801587e-05)))
    y = tl.where(n & 1 == 0, s, c)
    return tl.where(n & 2 == 0, y, -y)


@triton.jit
def sine(x):
    """sin(x), x f32 in radians. Of its own below 2e5, since the fast one of some hardware is wrong for large angles."""
    n, r = _quadrant(x)
    return tl.where(tl.abs(x) < 2e5, _sine_of(n, r), tl.sin(x))


@triton.jit
def cosine(x):
    """cos(x), x f32 in radians; see `sine`."""
    n, r = _quadrant(x)
    return tl.where(tl.abs(x) < 2e5, _sine_of(n + 1, r), tl.cos(x))


@triton.jit
def encode_fp8(x):
    """x f32 as e4m3 (OCP FP8, no infinities) in u8: to nearest even, saturating at 448. NaN becomes 0x7f."""
    bits = x.to(tl.int32, bitcast=True)
    sign = (bits >> 24) & 0x80
    a = tl.minimum(tl.abs(x), 448.0)
    wide = a.to(tl.int32, bitcast=True)
    normal = ((wide + 0x7FFFF + ((wide >> 20) & 1)) >> 20) - 960
    code = tl.where(a < 0.015625, rint(a * 512.0).to(tl.int32), normal)
    code = tl.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7F, code)
    return (code | sign).to(tl.uint8)


@triton.jit
def decode_fp8(code):
    """e4m3 in u8 or wider integers as f16: its bits are those of an f16 that is 256 times smaller."""
    wide = code.to(tl.int16)
    half = (((wide & 0x80) << 8) | ((wide & 0x7F) << 7)).to(tl.float16, bitcast=True)
    return half * 256.0
