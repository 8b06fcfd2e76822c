"""Draws the next token of each row of logits on the device: greedy, or temperature, top_k, top_p and min_p as in runtime/sampling.py.

Grid: (R,). A row with top_k or top_p works on its LIMIT largest logits: their threshold is found by four histograms of 8 bits, they are
gathered, sorted, and drawn from in f64. Where LIMIT is too few (a top_k above it, or a nucleus of more tokens), or no logit is finite, the
row's token is -1, and the host decides.
"""

import triton
import triton.language as tl

__all__ = ["sample"]


@triton.jit
def _ordered(x):
    """f32 as i32 that compare alike."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _threshold(logits, k, V: tl.constexpr, BLOCK: tl.constexpr):
    """(key of the k-th largest logit, how many logits of that key are among the k largest)."""
    prefix = k * 0
    left = k
    bins = tl.arange(0, 256)
    for digit in tl.static_range(4):
        shift = 24 - 8 * digit
        counts = tl.zeros((256,), tl.int32)
        for start in range(0, V, BLOCK):
            i = start + tl.arange(0, BLOCK)
            key = _ordered(tl.load(logits + i, mask=i < V, other=float("-inf")))
            # Flipping the sign bit makes the signed order that of the digits.
            key = key ^ -2147483648
            if digit == 0:
                alike = i < V
            else:
                alike = (i < V) & (((key >> (shift + 8)) & ((1 << (8 * digit)) - 1)) == prefix)
            counts += tl.histogram((key >> shift) & 255, 256, mask=alike)
        above = tl.sum(counts, axis=0) - tl.cumsum(counts, axis=0)
        # The largest digit with at least `left` logits from it upwards.
        chosen = tl.max(tl.where(above + counts >= left, bins, -1), axis=0)
        left -= tl.sum(tl.where(bins == chosen, above, 0), axis=0)
        prefix = (prefix << 8) | chosen
    return prefix ^ -2147483648, left


@triton.jit
def _sorted(logits, scratch, k, V: tl.constexpr, LIMIT: tl.constexpr, BLOCK: tl.constexpr):
    """Keys and ids of the k <= LIMIT largest logits, largest first, the lowest id first among equals; what follows is arbitrary."""
    key_of_last, equals = _threshold(logits, k, V, BLOCK)
    done = k * 0
    same = k * 0
    for start in range(0, V, BLOCK):
        i = start + tl.arange(0, BLOCK)
        key = _ordered(tl.load(logits + i, mask=i < V, other=float("-inf")))
        equal = ((key == key_of_last) & (i < V)).to(tl.int32)
        rank = same + tl.cumsum(equal, axis=0)
        taken = (((key > key_of_last) & (i < V)) | ((equal != 0) & (rank <= equals))).to(tl.int32)
        place = done + tl.cumsum(taken, axis=0) - 1
        tl.store(scratch + place, (key.to(tl.int64) << 32) | (0x7FFFFFFF - i).to(tl.int64), mask=taken != 0)
        done += tl.sum(taken, axis=0)
        same += tl.sum(equal, axis=0)
    tl.debug_barrier()
    at = tl.arange(0, LIMIT)
    # Behind the k there is what an earlier row left.
    both = tl.sort(tl.load(scratch + at, mask=at < k, other=-0x7FFFFFFFFFFFFFFF), descending=True)
    return (both >> 32).to(tl.int32), 0x7FFFFFFF - (both & 0xFFFFFFFF).to(tl.int32)


@triton.jit
def _sum(logits, top, temperature, V: tl.constexpr, BLOCK: tl.constexpr):
    """The sum of exp((logit - top) / temperature), f64."""
    total = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, V, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(logits + i, mask=i < V, other=float("-inf")).to(tl.float64)
        total += tl.exp((x - top) / temperature)
    return tl.sum(total, axis=0)


@triton.jit
def _from_largest(
    logits, scratch, top, temperature, top_p, min_p, uniform, top_k, limited, V: tl.constexpr, LIMIT: tl.constexpr, BLOCK: tl.constexpr
):
    """(a token drawn from the top_k and the nucleus, whether LIMIT logits were enough)."""
    k = tl.minimum(tl.minimum(tl.where(limited, top_k, LIMIT), LIMIT), V)
    key, ids = _sorted(logits, scratch, k, V, LIMIT, BLOCK)
    at = tl.arange(0, LIMIT)
    value = (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True).to(tl.float64)
    weight = tl.where(at < k, tl.exp((tl.where(at < k, value, top) - top) / temperature), 0.0)
    mass = tl.cumsum(weight, axis=0)
    whole = tl.sum(weight, axis=0)
    enough = top_k <= LIMIT
    if limited == 0:
        seen = whole
        whole = _sum(logits, top, temperature, V, BLOCK)
        enough = (k == V) | (seen >= top_p * whole)
    nucleus = tl.where(top_p < 1.0, top_p * whole, float("inf"))
    keep = (at < k) & (weight >= min_p) & (mass - weight < nucleus)
    weight = tl.where(keep, weight, 0.0)
    wanted = uniform * tl.sum(weight, axis=0)
    index = tl.sum((tl.cumsum(weight, axis=0) <= wanted).to(tl.int32), axis=0)
    index = tl.minimum(index, tl.sum(keep.to(tl.int32), axis=0) - 1)
    return tl.sum(tl.where(at == index, ids, 0), axis=0), enough


@triton.jit
def _from_all(logits, top, temperature, min_p, uniform, V: tl.constexpr, BLOCK: tl.constexpr):
    """A token drawn from all that are probable enough, in the order of their ids."""
    total = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, V, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(logits + i, mask=i < V, other=float("-inf")).to(tl.float64)
        weight = tl.exp((x - top) / temperature)
        total += tl.where(weight >= min_p, weight, 0.0)
    wanted = uniform * tl.sum(total, axis=0)
    mass = wanted * 0.0
    found = tl.full((), V, tl.int32)
    last = tl.full((), 0, tl.int32)
    for start in range(0, V, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(logits + i, mask=i < V, other=float("-inf")).to(tl.float64)
        weight = tl.exp((x - top) / temperature)
        keep = (weight >= min_p) & (i < V)
        weight = tl.where(keep, weight, 0.0)
        over = keep & (mass + tl.cumsum(weight, axis=0) > wanted)
        found = tl.minimum(found, tl.min(tl.where(over, i, V), axis=0))
        last = tl.maximum(last, tl.max(tl.where(keep, i, 0), axis=0))
        mass += tl.sum(weight, axis=0)
    return tl.where(found < V, found, last)


@triton.jit
def sample(
    logits_ptr,
    settings_ptr,
    ks_ptr,
    scratch_ptr,
    tokens_ptr,
    V: tl.constexpr,
    LIMIT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """logits f32 [R, V]; settings f64 [R, 4]: temperature, top_p, min_p, uniform number; ks i32 [R]: top_k; tokens i32 [R].

    scratch: i64 [R, LIMIT]. LIMIT: a power of two.
    """
    r = tl.program_id(0)
    logits = logits_ptr + r.to(tl.int64) * V
    temperature = tl.load(settings_ptr + r * 4)
    top_p = tl.load(settings_ptr + r * 4 + 1)
    min_p = tl.load(settings_ptr + r * 4 + 2)
    uniform = tl.load(settings_ptr + r * 4 + 3)
    top_k = tl.load(ks_ptr + r)
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    best_at = tl.full((BLOCK,), V, tl.int32)
    finite = tl.full((BLOCK,), 1, tl.int32)
    for start in range(0, V, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(logits + i, mask=i < V, other=float("-inf"))
        finite = tl.where((x != x) | (x == float("inf")), 0, finite)
        best_at = tl.where(x > best, i, best_at)
        best = tl.maximum(best, x)
    top = tl.max(best, axis=0)
    token = tl.min(tl.where(best == top, best_at, V), axis=0)
    decided = (tl.min(finite, axis=0) != 0) & (top != float("-inf"))
    if temperature > 0.0:
        limited = ((top_k > 0) & (top_k < V)).to(tl.int32)
        if (limited != 0) | (top_p < 1.0):
            scratch = scratch_ptr + r.to(tl.int64) * LIMIT
            wide = top.to(tl.float64)
            token, enough = _from_largest(logits, scratch, wide, temperature, top_p, min_p, uniform, top_k, limited, V, LIMIT, BLOCK)
            decided = decided & enough
        else:
            token = _from_all(logits, top.to(tl.float64), temperature, min_p, uniform, V, BLOCK)
    tl.store(tokens_ptr + r, tl.where(decided, token, -1))
