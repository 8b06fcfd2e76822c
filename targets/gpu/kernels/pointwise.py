"""Elementwise ops of one or two operands, with broadcasting. Grid: (ceil(elements / BLOCK),).

An operand is seen as [outer, D1, D2, D3], the outer dim of any size, with a stride (in elements, 0 where it is broadcast) for each.
"""

import triton
import triton.language as tl

from mixplan.targets.gpu.kernels.common import activate, cosine, rint, sine

__all__ = ["binary", "offset", "unary"]


@triton.jit
def offset(
    i,
    D1: tl.constexpr,
    D2: tl.constexpr,
    D3: tl.constexpr,
    S0: tl.constexpr,
    S1: tl.constexpr,
    S2: tl.constexpr,
    S3: tl.constexpr,
):
    """Where element i of [outer, D1, D2, D3] stands under these strides."""
    d3 = i % D3
    i = i // D3
    d2 = i % D2
    i = i // D2
    return (i // D1) * S0 + (i % D1) * S1 + d2 * S2 + d3 * S3


@triton.jit
def _apply(x, OP: tl.constexpr):
    if OP == "copy":
        y = x
    elif OP == "neg":
        y = -x
    elif OP == "abs":
        y = tl.abs(x)
    elif OP == "exp":
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
    elif OP == "square":
        y = x * x
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
    elif OP == "softplus":
        y = tl.where(x > 20.0, x, tl.log(1.0 + tl.exp(x)))
    elif OP == "logical_not":
        y = x == 0
    else:
        y = activate(x, OP)
    return y


@triton.jit
def unary(
    x_ptr,
    y_ptr,
    outer,
    OP: tl.constexpr,
    D1: tl.constexpr,
    D2: tl.constexpr,
    D3: tl.constexpr,
    X0: tl.constexpr,
    X1: tl.constexpr,
    X2: tl.constexpr,
    X3: tl.constexpr,
    Y0: tl.constexpr,
    Y1: tl.constexpr,
    Y2: tl.constexpr,
    Y3: tl.constexpr,
    TRUTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """y = OP(x), converted to y's type. OP "copy" moves, converts and broadcasts. TRUTH: y is a bool, held as u8."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < outer * (D1 * D2 * D3)
    x = tl.load(x_ptr + offset(i, D1, D2, D3, X0, X1, X2, X3), mask=mask, other=0)
    y = _apply(x, OP)
    if TRUTH:
        y = y != 0
    tl.store(y_ptr + offset(i, D1, D2, D3, Y0, Y1, Y2, Y3), y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def binary(
    a_ptr,
    b_ptr,
    y_ptr,
    outer,
    OP: tl.constexpr,
    D1: tl.constexpr,
    D2: tl.constexpr,
    D3: tl.constexpr,
    A0: tl.constexpr,
    A1: tl.constexpr,
    A2: tl.constexpr,
    A3: tl.constexpr,
    B0: tl.constexpr,
    B1: tl.constexpr,
    B2: tl.constexpr,
    B3: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """y = OP(a, b), contiguous; comparisons give a bool, held as u8."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < outer * (D1 * D2 * D3)
    a = tl.load(a_ptr + offset(i, D1, D2, D3, A0, A1, A2, A3), mask=mask, other=0)
    b = tl.load(b_ptr + offset(i, D1, D2, D3, B0, B1, B2, B3), mask=mask, other=1)
    if OP == "add":
        y = a + b
    elif OP == "sub":
        y = a - b
    elif OP == "mul":
        y = a * b
    elif OP == "div":
        y = a / b
    elif OP == "maximum":
        y = tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    elif OP == "minimum":
        y = tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
    elif OP == "eq":
        y = a == b
    elif OP == "ne":
        y = a != b
    elif OP == "lt":
        y = a < b
    elif OP == "le":
        y = a <= b
    elif OP == "gt":
        y = a > b
    elif OP == "ge":
        y = a >= b
    elif OP == "logical_and":
        y = (a != 0) & (b != 0)
    else:
        tl.static_assert(OP == "logical_or", "unknown op")
        y = (a != 0) | (b != 0)
    tl.store(y_ptr + i, y.to(y_ptr.dtype.element_ty), mask=mask)
