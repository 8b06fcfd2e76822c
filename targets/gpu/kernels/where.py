"""Chooses between two operands, with broadcasting. Grid: (ceil(elements / BLOCK),)."""

import triton
import triton.language as tl

from mixplan.targets.gpu.kernels.pointwise import offset

__all__ = ["where"]


@triton.jit
def where(
    c_ptr,
    a_ptr,
    b_ptr,
    y_ptr,
    outer,
    D1: tl.constexpr,
    D2: tl.constexpr,
    D3: tl.constexpr,
    C0: tl.constexpr,
    C1: tl.constexpr,
    C2: tl.constexpr,
    C3: tl.constexpr,
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
    """y = a where c (u8) is not 0, else b; operands as in `pointwise`."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < outer * (D1 * D2 * D3)
    c = tl.load(c_ptr + offset(i, D1, D2, D3, C0, C1, C2, C3), mask=mask, other=0)
    a = tl.load(a_ptr + offset(i, D1, D2, D3, A0, A1, A2, A3), mask=mask, other=0)
    b = tl.load(b_ptr + offset(i, D1, D2, D3, B0, B1, B2, B3), mask=mask, other=0)
    tl.store(y_ptr + i, tl.where(c != 0, a, b), mask=mask)
