"""Attention of a ragged step over the KV cache: the one op that mixes tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mixplan.runtime.dtypes import DType
from mixplan.runtime.errors import PlanError
from mixplan.runtime.ops.base import Array, OpSpec, StepContext, TypedShape
from mixplan.runtime.ops.checks import FLOATS, check_exact, need_dtype, need_rank
from mixplan.runtime.ops.define import CheckedAttrs, define
from mixplan.runtime.ops.shapes import shape_text

__all__ = ["ATTENTION"]

_MASKS = ("causal", "chunked")
_SCORES = ("f32", "i8")
_QUERIES = 128  # queries scored at once, to bound memory


def _infer(inputs: Sequence[TypedShape | None], attrs: CheckedAttrs, declared: Sequence[TypedShape]) -> Sequence[TypedShape]:
    q, k, v = (
        need_rank("attention", name, need_dtype("attention", name, value, FLOATS), 4) for name, value in zip("qkv", inputs[:3], strict=True)
    )
    heads, kv_heads = q[2], k[2]
    if q[0] != 1 or not isinstance(heads, int) or not isinstance(kv_heads, int) or kv_heads < 1 or heads % kv_heads:
        raise PlanError(f"Op attention: q {shape_text(q)} and k {shape_text(k)} must be [1, T, heads, size], q's heads a multiple of k's.")
    if q[:2] != k[:2] or q[3] != k[3] or k[:3] != v[:3] or not isinstance(q[3], int) or not isinstance(v[3], int):
        raise PlanError(f"Op attention: q {shape_text(q)}, k {shape_text(k)} and v {shape_text(v)} do not fit one another.")
    check_exact("attention", "sinks", inputs[3], DType.f32, (heads,))
    check_exact("attention", "slopes", inputs[4], DType.f32, (heads,))
    window, mask, softcap = attrs["window"], attrs["mask"], attrs["softcap"]
    if attrs["layer"] < 0 or window < 0 or not softcap >= 0 or (mask == "chunked" and window == 0):
        raise PlanError(
            f"Op attention: layer {attrs['layer']}, window {window} and softcap {softcap} must be >= 0; a chunked mask needs a window."
        )
    if mask not in _MASKS:
        raise PlanError(f"Op attention: mask {mask!r} is not known; allowed: {', '.join(_MASKS)}.")
    if attrs["scores"] not in _SCORES:
        raise PlanError(f"Op attention: scores {attrs['scores']!r} are not known; allowed: {', '.join(_SCORES)}.")
    return [(DType.f32, (*q[:3], v[3]))]


def _rounded(q: Array) -> Array:
    """Queries [T, heads, size] as int8 numbers times a scale of each token and head."""
    largest = np.abs(q).max(axis=-1, keepdims=True)
    with np.errstate(all="ignore"):
        inverse = np.where(largest > 1e-30, np.float32(127) / largest, np.float32(0))
        return np.asarray(np.rint(q * inverse) * (largest / np.float32(127)), np.float32)


def _one_sequence(attrs: CheckedAttrs, q: Array, at: Array, k: Array, v: Array, keys_at: Array, sinks: Any, slopes: Any) -> Array:
    """q [n, Hq, Dk] at positions `at` [n]; k [L, Hkv, Dk] and v [L, Hkv, Dv] at positions `keys_at` [L]. Gives [n, Hq, Dv]."""
    n, heads, size = q.shape
    kv_heads = k.shape[1]
    per = heads // kv_heads
    grouped = q.reshape(n, kv_heads, per, size).transpose(1, 2, 0, 3).reshape(kv_heads, per * n, size)
    scores = np.matmul(grouped, k.transpose(1, 2, 0)).reshape(heads, n, -1) * np.float32(attrs["scale"])
    if attrs["softcap"]:
        cap = np.float32(attrs["softcap"])
        scores = np.tanh(scores / cap) * cap
    distance = at[:, None].astype(np.int64) - keys_at[None, :]
    if slopes is not None:
        scores = scores - slopes[:, None, None] * distance.astype(np.float32)
    seen = distance >= 0
    if attrs["mask"] == "chunked":
        seen &= at[:, None] // attrs["window"] == keys_at[None, :] // attrs["window"]
    elif attrs["window"]:
        seen &= distance < attrs["window"]
    scores = np.where(seen, scores, np.float32(-np.inf))
    top = scores.max(axis=-1, keepdims=True)
    if sinks is not None:
        top = np.maximum(top, sinks[:, None, None])
    weights = np.exp(scores - top)
    denominator = weights.sum(axis=-1, keepdims=True)
    if sinks is not None:
        denominator = denominator + np.exp(sinks[:, None, None] - top)
    weights = (weights / denominator).reshape(kv_heads, per * n, -1)
    out = np.matmul(weights, v.transpose(1, 0, 2)).reshape(kv_heads, per, n, -1)
    return np.asarray(out.transpose(2, 0, 1, 3).reshape(n, heads, -1))


def _reference(ctx: StepContext, attrs: CheckedAttrs, inputs: Sequence[Any]) -> Sequence[Array]:
    q, k, v = (x[0] for x in inputs[:3])
    if attrs["scores"] == "i8":
        q = _rounded(q)
    keys_at: Array
    out = np.empty((*q.shape[:2], v.shape[-1]), np.float32)
    if ctx.cache is not None:
        ctx.cache.append(attrs["layer"], k, v, ctx)
    for sequence in np.unique(ctx.sequences).tolist():
        tokens = np.flatnonzero(ctx.sequences == sequence)
        if ctx.cache is None:
            keys, values, keys_at = k[tokens], v[tokens], ctx.positions[tokens]
        else:
            length = int(ctx.positions[tokens].max()) + 1
            keys, values = ctx.cache.read(attrs["layer"], sequence, length)
            keys_at = np.arange(length)
        for start in range(0, len(tokens), _QUERIES):
            part = tokens[start : start + _QUERIES]
            with np.errstate(all="ignore"):
                out[part] = _one_sequence(attrs, q[part], ctx.positions[part], keys, values, keys_at, inputs[3], inputs[4])
    return [out[None]]


ATTENTION: tuple[OpSpec, ...] = (
    define(
        "attention",
        ("q", "k", "v", "sinks?", "slopes?"),
        _infer,
        _reference,
        "q [1, T, Hq, Dk] over the keys and values of each token's own sequence, up to its own position. First this step's k "
        "[1, T, Hkv, Dk] and v [1, T, Hkv, Dv] are stored in the KV cache of `layer`. score = `scale` * q.k, then softcap * tanh(score / "
        "softcap) where `softcap` is not 0, then + slopes[head] * (key position - query position) (ALiBi). A `window` w > 0 leaves keys "
        "above query position - w; `mask` chunked leaves keys of the query's own chunk of w positions. sinks [Hq] is one more logit in "
        "each head's softmax, without a value. Query head h reads key head h // (Hq / Hkv). With `scores` i8 q is rounded to int8, with a "
        "scale for each token and head, so that q.k is a product of integers where keys are; what follows stays f32. y is [1, T, Hq, Dv].",
        attrs={"layer": int, "scale": float, "window": int, "softcap": float, "mask": str, "scores": str},
        defaults={"window": 0, "softcap": 0.0, "mask": "causal", "scores": "f32"},
    ),
)
