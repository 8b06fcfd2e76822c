"""Pointwise ops on f32 values."""

import triton
import triton.language as tl

from mixplan.targets.gpu.kernels.chain_division import floor_divided, modulo, remainder
from mixplan.targets.gpu.kernels.chain_powers import arctangent, power
from mixplan.targets.gpu.kernels.common import activate, cosine, rint, sine

__all__ = ["float_binary", "float_unary"]


@triton.jit
def float_unary(x, OP: tl.constexpr, P: tl.constexpr, Q: tl.constexpr):
    """OP of x; P and Q are the op's numbers (of softplus: beta and threshold)."""
    if OP == "exp":
        y = tl.exp(x)
    elif OP == "exp2":
        y = tl.exp2(x)
    elif OP == "log":
        y = tl.log(x)
    elif OP == "log1p":
        y = tl.where(tl.abs(x) < 0.01, x * (1.0 - x * (0.5 - x * (0.33333334 - x * 0.25))), tl.log(1.0 + x))
    elif OP == "expm1":
        # Where exp(x) - 1 would cancel, the first terms of its series.
        y = tl.where(tl.abs(x) < 0.01, x * (1.0 + x * (0.5 + x * (0.16666667 + x * 0.041666668))), tl.exp(x) - 1.0)
    elif OP == "log_sigmoid":
        e = tl.exp(-tl.abs(x))
        y = tl.where(x < 0.0, x, 0.0) - tl.where(e < 1e-4, e - 0.5 * e * e, tl.log(1.0 + e))
    elif OP == "softplus":
        y = tl.where(P * x > Q, x, tl.log(1.0 + tl.exp(P * x)) / P)
    elif OP == "sign":
        y = tl.where(x > 0.0, 1.0, tl.where(x < 0.0, -1.0, x))
    elif OP == "isnan":
        y = x != x
    elif OP == "isinf":
        y = tl.abs(x) == float("inf")
    elif OP == "sqrt":
        y = tl.sqrt(x)
    elif OP == "rsqrt":
        y = 1.0 / tl.sqrt(x)
    elif OP == "reciprocal":
        y = 1.0 / x
    elif OP == "erf":
        y = tl.erf(x)
    elif OP == "sin":
        y = sine(x)
    elif OP == "cos":
        y = cosine(x)
    elif OP == "floor":
        y = tl.floor(x)
    elif OP == "ceil":
        y = tl.ceil(x)
    elif OP == "round":
        y = tl.where(tl.abs(x) < 4194304.0, rint(x), x)
    else:
        y = activate(x, OP)
    return y


@triton.jit
def float_binary(a, b, OP: tl.constexpr):
    """OP of a and b."""
    if OP == "div":
        y = a / b
    elif OP == "maximum":
        y = tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    elif OP == "minimum":
        y = tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
    elif OP == "pow":
        y = power(a, b)
    elif OP == "atan2":
        y = arctangent(a, b)
    elif OP == "fmod":
        y = modulo(a, b)
    elif OP == "remainder":
        y = remainder(a, b)
    else:
        tl.static_assert(OP == "floor_div", "unknown op")
        y = floor_divided(a, b)
    return y
