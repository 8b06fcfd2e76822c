"""A chain of pointwise ops in one launch: operands are read once, what is between stays in registers. Grid: (ceil(elements / BLOCK),).

The chain is a compile-time text (see chain_text), unrolled while the kernel is compiled: one kernel serves every chain, and no source
travels with a plan.
"""

import triton
import triton.language as tl

from mixplan.targets.gpu.kernels.chain_ops import binary, from_memory, literal, to_memory, unary
from mixplan.targets.gpu.kernels.chain_text import condition, count, dims, inner, integer, number, operands, pointer, word

__all__ = ["chain"]


@triton.jit
def _offset(i, CHAIN: tl.constexpr, KIND: tl.constexpr, LINE: tl.constexpr, FIRST: tl.constexpr):
    """Where elements i stand in an operand, in elements; its strides are words FIRST and on of the line."""
    DIMS: tl.constexpr = dims(CHAIN)
    at = i * 0
    for back in tl.static_range(DIMS):
        if integer(CHAIN, KIND, LINE, FIRST + DIMS - back) != 0:
            at += (i % integer(CHAIN, "sizes", 0, DIMS - back)) * integer(CHAIN, KIND, LINE, FIRST + DIMS - back)
        i = i // integer(CHAIN, "sizes", 0, DIMS - back)
    return at + i * integer(CHAIN, KIND, LINE, FIRST)


@triton.jit
def _value(i, mask, held, sources, CHAIN: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr):
    """Value N, from the values held before it."""
    OP: tl.constexpr = word(CHAIN, "value", N, 0)
    DTYPE: tl.constexpr = word(CHAIN, "value", N, 1)
    if OP == "load":
        at = _offset(i, CHAIN, "value", N, 2)
        if condition(CHAIN, N) > 0:
            at += integer(CHAIN, "value", N, condition(CHAIN, N) + 1)
            mask = mask & held[integer(CHAIN, "value", N, condition(CHAIN, N))]
        v = from_memory(tl.load(sources[pointer(CHAIN, N)] + at, mask=mask, other=0), DTYPE)
    elif OP == "index":
        v = _offset(i, CHAIN, "value", N, 2).to(tl.int64)
    elif OP == "number":
        v = literal(number(CHAIN, N, 2, DTYPE), DTYPE, BLOCK)
    elif operands(CHAIN, N) == 1:
        a = held[integer(CHAIN, "value", N, 2)]
        v = unary(a, OP, DTYPE, word(CHAIN, "value", N, 3), number(CHAIN, N, 3, "f32"), number(CHAIN, N, 4, "f32"))
    elif operands(CHAIN, N) == 2:
        v = binary(held[integer(CHAIN, "value", N, 2)], held[integer(CHAIN, "value", N, 3)], OP, DTYPE)
    else:
        tl.static_assert(OP == "where", "unknown op")
        v = tl.where(held[integer(CHAIN, "value", N, 2)], held[integer(CHAIN, "value", N, 3)], held[integer(CHAIN, "value", N, 4)])
    return v


@triton.jit
def chain(
    x0_ptr,
    x1_ptr,
    x2_ptr,
    x3_ptr,
    x4_ptr,
    x5_ptr,
    x6_ptr,
    x7_ptr,
    y0_ptr,
    y1_ptr,
    y2_ptr,
    y3_ptr,
    outer,
    CHAIN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Loads from x0 on and stores to y0 on as CHAIN says; pointers that it does not need are None."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < outer * inner(CHAIN)
    sources = (x0_ptr, x1_ptr, x2_ptr, x3_ptr, x4_ptr, x5_ptr, x6_ptr, x7_ptr)
    targets = (y0_ptr, y1_ptr, y2_ptr, y3_ptr)
    held = ()
    for n in tl.static_range(count(CHAIN, "value")):
        held += (_value(i, mask, held, sources, CHAIN, n, BLOCK),)
    for n in tl.static_range(count(CHAIN, "store")):
        at = _offset(i, CHAIN, "store", n, 3)
        y = to_memory(held[integer(CHAIN, "store", n, 2)], word(CHAIN, "store", n, 1))
        tl.store(targets[n] + at, y, mask=mask)
