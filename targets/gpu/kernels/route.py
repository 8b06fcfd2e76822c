"""Sorts (token, choice) pairs by their expert, so that a grouped product reads each expert's weight once. Grid: (E + 1,).

Pairs of one expert come to stand together, each expert's filled up with -1 to a multiple of BLOCK_M; a tile of BLOCK_M places then has one
expert. The id E ("no expert") is sorted as one more expert, for its rows must become zeros.
"""

import triton
import triton.language as tl

__all__ = ["route"]


@triton.jit
def route(
    ids_ptr,
    order_ptr,
    experts_ptr,
    pairs,
    tiles,
    E: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """ids i64 [pairs]; order i32 [tiles * BLOCK_M] pair numbers, experts i32 [tiles], -1 for tiles that hold nothing.

    BLOCK_E: a power of two above E. Every program counts all pairs: that costs less than a second launch.
    """
    e = tl.program_id(0)
    lanes = tl.arange(0, BLOCK_E)
    counts = tl.zeros((BLOCK_E,), tl.int32)
    for start in range(0, pairs, BLOCK):
        i = start + tl.arange(0, BLOCK)
        ids = tl.load(ids_ptr + i, mask=i < pairs, other=0).to(tl.int32)
        counts += tl.histogram(ids, BLOCK_E, mask=i < pairs)
    padded = (counts + BLOCK_M - 1) // BLOCK_M * BLOCK_M
    first = tl.sum(tl.where(lanes < e, padded, 0), axis=0)
    count = tl.sum(tl.where(lanes == e, counts, 0), axis=0)
    done = first
    for start in range(0, pairs, BLOCK):
        i = start + tl.arange(0, BLOCK)
        mine = (tl.load(ids_ptr + i, mask=i < pairs, other=-1).to(tl.int32) == e).to(tl.int32)
        place = done + tl.cumsum(mine, axis=0) - 1
        tl.store(order_ptr + place, i, mask=mine != 0)
        done += tl.sum(mine, axis=0)
    fill = first + count + tl.arange(0, BLOCK_M)
    stop = first + (count + BLOCK_M - 1) // BLOCK_M * BLOCK_M
    tl.store(order_ptr + fill, tl.full((BLOCK_M,), -1, tl.int32), mask=fill < stop)
    for tile in range(first // BLOCK_M, stop // BLOCK_M):
        tl.store(experts_ptr + tile, e)
    if e == E:
        for tile in range(stop // BLOCK_M, tiles):
            tl.store(experts_ptr + tile, -1)
