"""The ops of a chain, on values in registers: floats of every width as f32, integers as they are, bools as bits."""

import triton
import triton.language as tl

from mixplan.targets.gpu.kernels.chain_floats import float_binary, float_unary
from mixplan.targets.gpu.kernels.chain_integers import integer_binary, integer_unary
from mixplan.targets.gpu.kernels.common import round_bf16

__all__ = ["binary", "from_memory", "literal", "to_memory", "unary"]


@triton.jit
def from_memory(x, DTYPE: tl.constexpr):
    """x as it was loaded, as a value of DTYPE: bf16 lies in memory as its bits, a bool as a byte."""
    if DTYPE == "bool":
        y = x != 0
    elif DTYPE == "bf16":
        y = (x.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    elif DTYPE == "f16":
        y = x.to(tl.float32)
    else:
        y = x
    return y


@triton.jit
def to_memory(x, DTYPE: tl.constexpr):
    """The reverse of from_memory."""
    if DTYPE == "bool":
        y = x.to(tl.uint8)
    elif DTYPE == "bf16":
        y = (x.to(tl.int32, bitcast=True) >> 16).to(tl.int16)
    elif DTYPE == "f16":
        y = x.to(tl.float16)
    else:
        y = x
    return y


@triton.jit
def _cast(x, SOURCE: tl.constexpr, DTYPE: tl.constexpr):
    if DTYPE == "bool":
        y = x != 0
    elif DTYPE == "i64":
        y = x.to(tl.int64)
    elif DTYPE == "i32":
        y = x.to(tl.int32)
    elif DTYPE == "i16":
        y = x.to(tl.int32).to(tl.int16)
    elif DTYPE == "i8":
        y = x.to(tl.int32).to(tl.int8)
    elif DTYPE == "u8":
        y = x.to(tl.int32).to(tl.uint8)
    else:
        y = x.to(tl.float32)
        if DTYPE == "f16":
            y = y.to(tl.float16).to(tl.float32)
        elif DTYPE == "bf16" and SOURCE != "bf16":
            y = tl.where(y == y, round_bf16(y), float("nan"))
    return y


@triton.jit
def literal(VALUE: tl.constexpr, DTYPE: tl.constexpr, BLOCK: tl.constexpr):
    """A number for every element."""
    if DTYPE == "bool":
        y = tl.full((BLOCK,), VALUE, tl.int32) != 0
    elif DTYPE == "i64":
        y = tl.full((BLOCK,), VALUE, tl.int64)
    elif DTYPE == "i32":
        y = tl.full((BLOCK,), VALUE, tl.int32)
    else:
        y = _cast(tl.full((BLOCK,), VALUE, tl.float32), "f32", DTYPE)
    return y


@triton.jit
def unary(x, OP: tl.constexpr, DTYPE: tl.constexpr, TO: tl.constexpr, P: tl.constexpr, Q: tl.constexpr):
    """OP of x of DTYPE. TO: the dtype of a cast; P and Q: the op's numbers."""
    if OP == "cast":
        y = _cast(x, DTYPE, TO)
    elif OP == "logical_not":
        y = x == 0
    elif OP == "square":
        y = x * x
    elif OP == "abs":
        y = tl.abs(x)
    elif OP == "neg":
        y = -x
    elif DTYPE == "f32":
        y = float_unary(x, OP, P, Q)
    else:
        y = integer_unary(x, OP)
    return y


@triton.jit
def binary(a, b, OP: tl.constexpr, DTYPE: tl.constexpr):
    """OP of a and b, both of DTYPE."""
    if OP == "add":
        y = a + b
    elif OP == "sub":
        y = a - b
    elif OP == "mul":
        y = a * b
    elif OP == "logical_and":
        y = (a != 0) & (b != 0)
    elif OP == "logical_or":
        y = (a != 0) | (b != 0)
    elif OP == "logical_xor":
        y = (a != 0) != (b != 0)
    elif OP == "eq" or OP == "ne" or OP == "lt" or OP == "le" or OP == "gt" or OP == "ge":
        # The order of bits as signed numbers would be the wrong one.
        if DTYPE == "bool":
            y = _compared(a.to(tl.int32), b.to(tl.int32), OP)
        else:
            y = _compared(a, b, OP)
    elif DTYPE == "f32":
        y = float_binary(a, b, OP)
    elif DTYPE == "bool":
        y = integer_binary(a.to(tl.int32), b.to(tl.int32), OP) != 0
    else:
        y = integer_binary(a, b, OP)
    return y


@triton.jit
def _compared(a, b, OP: tl.constexpr):
    if OP == "eq":
        y = a == b
    elif OP == "ne":
        y = a != b
    elif OP == "lt":
        y = a < b
    elif OP == "le":
        y = a <= b
    elif OP == "gt":
        y = a > b
    else:
        y = a >= b
    return y
