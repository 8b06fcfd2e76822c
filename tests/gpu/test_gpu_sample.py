"""Tokens drawn by the kernel are those that the runtime's sampler draws."""

from __future__ import annotations

from typing import Any

import numpy as np

from mixplan.runtime.logit_rows import LogitRows
from mixplan.runtime.sampling import Draw, SamplingParams, draw_tokens

V, LIMIT = 500, 64


def _draw(kernel: Any, logits: np.ndarray, params: list[SamplingParams], uniforms: list[float]) -> np.ndarray:
    rows = len(params)
    settings = np.array([[p.temperature, p.top_p, p.min_p, u] for p, u in zip(params, uniforms, strict=True)], np.float64)
    ks = np.array([p.top_k for p in params], np.int32)
    scratch = np.full((rows, LIMIT), np.iinfo(np.int64).max, np.int64)
    return np.asarray(kernel("sample", (rows,), logits, settings, ks, scratch, np.zeros(rows, np.int32), V=V, LIMIT=LIMIT, BLOCK=256)[-1])


def test_tokens_agree_with_the_sampler(kernel: Any) -> None:
    rng = np.random.default_rng(1)
    settings: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 0.7, "min_p": 0.05},
        {"temperature": 0.8, "top_k": 1},
        {"temperature": 1.5, "top_k": LIMIT},
        {"temperature": 0.6, "top_p": 0.9},
        {"temperature": 1.0, "top_k": 20, "top_p": 0.8, "min_p": 0.02},
        {"temperature": 0.5, "top_p": 0.001},
    ]
    params = [SamplingParams(**one) for one in settings for _ in range(4)]
    uniforms = [u for _ in settings for u in (0.0, 0.3, 0.77, 1 - 2.0**-53)]
    logits = (rng.standard_normal((len(params), V)) * 4).astype(np.float32)
    logits[::2] = np.round(logits[::2])  # many equals: the lowest ids come first, at the k-th place too
    wanted = draw_tokens(LogitRows(logits), [Draw(p, [u]) for p, u in zip(params, uniforms, strict=True)])
    assert _draw(kernel, logits, params, uniforms).tolist() == wanted
    assert len(set(wanted)) > 20


def test_what_the_kernel_leaves_to_the_host(kernel: Any) -> None:
    """A nucleus wider than the limit, a top_k above it, and rows without a finite largest logit."""
    flat = np.zeros((5, V), np.float32)
    flat[2, 3], flat[3, 5], flat[4] = np.nan, np.inf, -np.inf
    params = [SamplingParams(temperature=1.0, top_p=0.5), SamplingParams(temperature=1.0, top_k=LIMIT + 1)]
    params += [SamplingParams(temperature=0.0)] * 3
    assert _draw(kernel, flat, params, [0.5] * 5).tolist() == [-1] * 5
