"""Attention against a plain loop over queries, heads and keys: masks, softcap, sinks, ALiBi, grouped heads, the cache."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mixplan.runtime.dtypes import DType
from mixplan.runtime.errors import PlanError
from mixplan.runtime.ops import StepContext, op_spec
from mixplan.runtime.plan import Sym


def plain(q, k, v, scale, window=0, softcap=0.0, mask="causal", sinks=None, slopes=None):
    """q [n, Hq, Dk], k [n, Hkv, Dk], v [n, Hkv, Dv] of one sequence from position 0 on, in float64."""
    out = np.zeros((*q.shape[:2], v.shape[2]))
    for i, h in np.ndindex(q.shape[:2]):
        first = 0
        if mask == "chunked":
            first = i // window * window
        elif window:
            first = max(0, i - window + 1)
        kv = h // (q.shape[1] // k.shape[1])
        scores = []
        for j in range(first, i + 1):
            score = scale * float(q[i, h].astype(np.float64) @ k[j, kv].astype(np.float64))
            score = softcap * math.tanh(score / softcap) if softcap else score
            scores.append(score + (slopes[h] * (j - i) if slopes is not None else 0.0))
        logits = np.array([*scores, *([sinks[h]] if sinks is not None else [])], np.float64)
        weights = np.exp(logits - logits.max())
        weights /= weights.sum()
        for j in range(first, i + 1):
            out[i, h] += weights[j - first] * v[j, kv]
    return out


class Cache:
    """Keys and values in a dict: the protocol of ops/base.py at its simplest."""

    def __init__(self):
        self.held = {}

    def append(self, layer, k, v, step):
        for t, (sequence, position) in enumerate(zip(step.sequences.tolist(), step.positions.tolist(), strict=True)):
            self.held[layer, sequence, position] = (k[t].copy(), v[t].copy())

    def read(self, layer, sequence, length):
        pairs = [self.held[layer, sequence, position] for position in range(length)]
        return np.stack([k for k, _ in pairs]), np.stack([v for _, v in pairs])


HEADS, KV_HEADS, K_DIM, V_DIM = 6, 2, 8, 5
VARIANTS = {
    "plain": {},
    "window": {"window": 4},
    "chunked": {"window": 4, "mask": "chunked"},
    "softcap": {"softcap": 2.5},
    "window and softcap": {"window": 7, "softcap": 1.5},
}


def draw(rng, n, heads=HEADS, kv_heads=KV_HEADS):
    sizes = ((heads, K_DIM), (kv_heads, K_DIM), (kv_heads, V_DIM))
    return [rng.standard_normal((n, *size)).astype(np.float32) for size in sizes]


def extras(sinks, slopes):
    return (
        np.linspace(-1, 2, HEADS, dtype=np.float32) if sinks else None,
        np.geomspace(0.5, 0.01, HEADS).astype(np.float32) if slopes else None,
    )


@pytest.mark.parametrize("slopes", [False, True])
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_one_sequence_without_a_cache(check_op, variant, sinks, slopes):
    attrs = {"layer": 0, "scale": 0.3, **VARIANTS[variant]}
    sink, slope = extras(sinks, slopes)

    def build(t, r, rng):
        return [*(x[None] for x in draw(rng, t)), sink, slope]

    def oracle(q, k, v, a=None, b=None):
        return plain(q[0], k[0], v[0], 0.3, **VARIANTS[variant], sinks=a, slopes=b)[None].astype(np.float32)

    check_op("attention", attrs, build, oracle, "f32_sum")


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_ragged_step_with_a_cache_equals_each_sequence_alone(variant):
    """Three sequences, interleaved token by token, in steps of different lengths; slots are not in order."""
    rng = np.random.default_rng(0)
    lengths = {7: 19, 2: 1, 4: 150}
    whole = {s: draw(rng, n) for s, n in lengths.items()}
    attrs = {"layer": 3, "scale": 0.3, **VARIANTS[variant]}
    sinks, slopes = extras(True, True)
    wanted = {s: plain(*whole[s], 0.3, **VARIANTS[variant], sinks=sinks, slopes=slopes) for s in lengths}
    cache, done = Cache(), dict.fromkeys(lengths, 0)
    for width in (1, 6, 2, 140, 30):
        tokens = [(s, p) for s in lengths for p in range(done[s], min(done[s] + width, lengths[s]))]
        # Interleaved, but in order within a sequence.
        tokens.sort(key=lambda token: (token[1] - done[token[0]], token[0]))
        ctx = StepContext(*(np.array(column, np.int32) for column in zip(*tokens, strict=True)), cache=cache)
        q, k, v = (np.stack([whole[s][part][p] for s, p in tokens])[None] for part in range(3))
        (out,) = op_spec("attention").reference(ctx, attrs, [q, k, v, sinks, slopes])
        for row, (s, p) in zip(out[0], tokens, strict=True):
            np.testing.assert_allclose(row, wanted[s][p], rtol=1e-5, atol=1e-5)
            done[s] = max(done[s], p + 1)
    assert done == lengths


def test_going_back_reads_no_stale_key():
    rng = np.random.default_rng(1)
    q, k, v = draw(rng, 9)
    spec, cache = op_spec("attention"), Cache()

    def step(start, stop, keys):
        ctx = StepContext(np.zeros(stop - start, np.int32), np.arange(start, stop, dtype=np.int32), cache=cache)
        return spec.reference(ctx, {"layer": 0, "scale": 1.0}, [x[None, start:stop] for x in (q, keys, v)])[0][0]

    step(0, 9, k)
    changed = k.copy()
    changed[4:] = draw(rng, 9)[1][4:]
    np.testing.assert_allclose(step(4, 6, changed), plain(q, changed, v, 1.0)[4:6], rtol=1e-5, atol=1e-5)


T = Sym("T")


def heads(n, size):
    return (DType.f32, (1, T, n, size))


GOOD = {"layer": 0, "scale": 1.0}


@pytest.mark.parametrize(
    ("inputs", "attrs", "text"),
    [
        ([heads(5, 8), heads(2, 8), heads(2, 8)], GOOD, "multiple of k's"),
        ([heads(4, 8), heads(2, 9), heads(2, 8)], GOOD, "do not fit one another"),
        ([heads(4, 8), heads(2, 8), heads(1, 8)], GOOD, "do not fit one another"),
        ([heads(4, 8), (DType.f32, (1, 3, 2, 8)), heads(2, 8)], GOOD, "do not fit one another"),
        ([heads(4, 8), heads(2, 8), heads(2, 8), (DType.f32, (2,))], GOOD, "'sinks' is f32"),
        ([heads(4, 8), heads(2, 8), heads(2, 8), None, (DType.f32, (4, 1))], GOOD, "'slopes' is f32"),
        ([(DType.f32, (T, 4, 8)), heads(2, 8), heads(2, 8)], GOOD, "must have 4 dims"),
        ([heads(4, 8), heads(2, 8), heads(2, 8)], {**GOOD, "mask": "full"}, "allowed: causal, chunked"),
        ([heads(4, 8), heads(2, 8), heads(2, 8)], {**GOOD, "mask": "chunked"}, "chunked mask needs a window"),
        ([heads(4, 8), heads(2, 8), heads(2, 8)], {**GOOD, "window": -1}, "window -1"),
        ([heads(4, 8), heads(2, 8), heads(2, 8)], {**GOOD, "softcap": float("nan")}, "softcap nan"),
    ],
)
def test_wrong_inputs_are_refused(inputs, attrs, text):
    with pytest.raises(PlanError, match=text):
        op_spec("attention").infer(inputs, attrs, [])
