"""Rows reduced to one number each, a block of columns at a time. Grid: (rows,)."""

import triton
import triton.language as tl

__all__ = ["reduce_rows"]


@triton.jit
def _product(a, b):
    return a * b


@triton.jit
def _gathered(x_ptr, K: tl.constexpr, OP: tl.constexpr, BLOCK: tl.constexpr):
    """Sums, products and truths [BLOCK] of the blocks of a row, and their reduction."""
    kind: tl.constexpr = x_ptr.dtype.element_ty if OP == "sum" or OP == "mean" or OP == "prod" else tl.int32
    acc = tl.full((BLOCK,), 0 if OP == "sum" or OP == "mean" or OP == "any" else 1, kind)
    for start in range(0, K, BLOCK):
        k = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + k, mask=k < K, other=0 if OP == "sum" or OP == "mean" or OP == "any" else 1)
        if OP == "sum" or OP == "mean":
            acc += x
        elif OP == "prod":
            acc *= x
        elif OP == "any":
            acc |= (x != 0).to(tl.int32)
        else:
            acc &= (x != 0).to(tl.int32)
    if OP == "sum" or OP == "mean":
        y = tl.sum(acc, axis=0)
    elif OP == "prod":
        y = tl.reduce(acc, 0, _product)
    elif OP == "any":
        y = tl.max(acc, axis=0)
    else:
        y = tl.min(acc, axis=0)
    return y / K if OP == "mean" else y


@triton.jit
def _logarithm(x_ptr, K: tl.constexpr, BLOCK: tl.constexpr):
    """log(sum(exp(x))), free of overflow."""
    most = tl.full((BLOCK,), float("-inf"), tl.float32)
    for start in range(0, K, BLOCK):
        k = start + tl.arange(0, BLOCK)
        most = tl.maximum(most, tl.load(x_ptr + k, mask=k < K, other=float("-inf")))
    largest = tl.max(most, axis=0)
    largest = tl.where(largest == float("-inf"), 0.0, largest)
    acc = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, K, BLOCK):
        k = start + tl.arange(0, BLOCK)
        acc += tl.exp(tl.load(x_ptr + k, mask=k < K, other=float("-inf")) - largest)
    return largest + tl.log(tl.sum(acc, axis=0))


@triton.jit
def _best(x_ptr, K: tl.constexpr, LARGEST: tl.constexpr, FLOATS: tl.constexpr, END: tl.constexpr, BLOCK: tl.constexpr):
    """The largest or smallest element, and where it first stands; a NaN is both. END: what no integer is better than."""
    end: tl.constexpr = (float("-inf") if LARGEST else float("inf")) if FLOATS else END
    k = tl.arange(0, BLOCK)
    best = tl.load(x_ptr + k, mask=k < K, other=end)
    at = tl.where(k < K, k, K)
    for start in range(BLOCK, K, BLOCK):
        k = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + k, mask=k < K, other=end)
        if LARGEST:
            better = x > best
        else:
            better = x < best
        if FLOATS:
            better = better | ((x != x) & (best == best))
        best = tl.where(better, x, best)
        at = tl.where(better, k, at)
    odd = tl.min(tl.where(best != best, at, K), axis=0)
    plain = tl.where(best == best, best, end).to(best.dtype)
    if LARGEST:
        found = tl.max(plain, axis=0)
    else:
        found = tl.min(plain, axis=0)
    place = tl.min(tl.where(plain == found, at, K), axis=0)
    if FLOATS:
        found = tl.where(odd < K, float("nan"), found)
        place = tl.where(odd < K, odd, place)
    return found, place


@triton.jit
def reduce_rows(x_ptr, y_ptr, K: tl.constexpr, OP: tl.constexpr, FLOATS: tl.constexpr, END: tl.constexpr, BLOCK: tl.constexpr):
    """x [rows, K] to y [rows].

    OP: sum, mean, prod, amax, amin, argmax, argmin (i64), any, all (of bytes) or logsumexp. FLOATS: x is f32; else END is, of amax and
    argmax, the least number of x's type, and of amin and argmin the largest.
    """
    row = tl.program_id(0)
    if OP == "logsumexp":
        y = _logarithm(x_ptr + row * K, K, BLOCK)
    elif OP == "amax" or OP == "amin":
        y, _ = _best(x_ptr + row * K, K, OP == "amax", FLOATS, END, BLOCK)
    elif OP == "argmax" or OP == "argmin":
        _, y = _best(x_ptr + row * K, K, OP == "argmax", FLOATS, END, BLOCK)
    else:
        y = _gathered(x_ptr + row * K, K, OP, BLOCK)
    tl.store(y_ptr + row, y.to(y_ptr.dtype.element_ty))
