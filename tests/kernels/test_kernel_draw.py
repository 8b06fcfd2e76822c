"""Tokens drawn by the kernels, against the numpy sampling: the same token for the same number, but for numbers next to a border."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from mixplan.runtime.devices.cpu_abi import DrawArgs
from mixplan.runtime.sampling import SamplingParams, candidates

KERNELS: list[str] = []
EXTRA = """
extern "C" void draw(const float* x, int64_t columns, const float* maxima, int32_t best, const Draw* d, int64_t count, int32_t* out,
                     void* scratch) {
  for (int64_t i = 0; i < count; i++) out[i] = draw_token(x, columns, maxima, best, *d, d->uniforms[i], (Candidate*)scratch);
}
"""
# Weights are f32 in the kernels.
BORDER = 1e-5
SETTINGS: list[dict[str, Any]] = [
    {},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"top_k": 1},
    {"top_k": 40},
    {"top_k": 700, "top_p": 0.95},
    {"top_k": 40, "top_p": 0.9, "min_p": 0.02},
    {"top_k": 10**9},
    {"top_p": 0.9},
    {"top_p": 0.999, "min_p": 0.001},
    {"top_p": 1e-9},
    {"top_k": 10**9, "top_p": 0.5},
]


def _draw(native: Any, make_scratch: Any, x: np.ndarray, p: SamplingParams, uniforms: np.ndarray) -> np.ndarray:
    columns = x.shape[0]
    padded = np.pad(x, (0, -columns % 64), constant_values=-np.inf)
    maxima = padded.reshape(-1, 64).max(axis=1)
    given = DrawArgs(p.temperature, p.top_p, p.min_p, p.top_k, uniforms.ctypes.data)
    out, scratch = np.full(len(uniforms), -7, np.int32), make_scratch(columns * 8)
    place, number = ctypes.c_void_p, ctypes.c_int64
    native.library.draw(
        place(x.ctypes.data),
        number(columns),
        place(maxima.ctypes.data),
        ctypes.c_int32(int(x.argmax())),
        ctypes.byref(given),
        number(len(uniforms)),
        place(out.ctypes.data),
        place(scratch.ctypes.data),
    )
    return out


def _check(tokens: np.ndarray, x: np.ndarray, p: SamplingParams, uniforms: np.ndarray) -> None:
    ids, weights = candidates(x, p)
    ends = np.cumsum(weights) / weights.sum()
    place = {int(token): at for at, token in enumerate(ids)}
    assert set(tokens.tolist()) <= set(place), "a token that sampling leaves out"
    at = np.array([place[int(token)] for token in tokens])
    assert (uniforms <= ends[at] + BORDER).all()
    assert (uniforms >= ends[at] - weights[at] / weights.sum() - BORDER).all()


def _rows(columns: int) -> list[np.ndarray]:
    rng = np.random.default_rng(columns)
    usual = (rng.standard_normal(columns) * 3).astype(np.float32)
    masked = usual.copy()
    masked[rng.random(columns) < 0.6] = -np.inf
    masked[columns // 2] = 1
    # Many equal numbers, the same everywhere, and one far above the rest.
    return [
        usual,
        np.round(usual),
        masked,
        np.zeros(columns, np.float32),
        np.where(np.arange(columns) == columns - 1, 60, usual).astype(np.float32),
    ]


@pytest.mark.parametrize("columns", [1, 5, 64, 100, 1000, 20011])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_against_numpy(native: Any, make_scratch: Any, scratch_intact: Any, columns: int, settings: dict[str, Any]) -> None:
    uniforms = np.concatenate([np.random.default_rng(0).random(60), [0.0, 1 - 2.0**-53]])
    for x in _rows(columns):
        for temperature in (0.7, 1.0, 3.0):
            p = SamplingParams(temperature=temperature, **settings)
            _check(_draw(native, make_scratch, x, p, uniforms), x, p, uniforms)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("temperature", [5e-324, 1e-30, 1e-6, 1e30, 1.7e308])
def test_extreme_temperatures(native: Any, make_scratch: Any, settings: dict[str, Any], temperature: float) -> None:
    """The smallest give the largest logit, or one of several; the largest any of the candidates."""
    uniforms = np.random.default_rng(1).random(40)
    for x in _rows(1000):
        p = SamplingParams(temperature=temperature, **settings)
        tokens = _draw(native, make_scratch, x, p, uniforms)
        if temperature < 1:
            assert (x[tokens] == x.max()).all()
        ids, _ = candidates(x, p)
        # With weights of nearly 1 each, rounding decides what is left out.
        if temperature < 1 or ("top_p" not in settings and settings.get("min_p", 0) < 1):
            assert set(tokens.tolist()) <= set(ids.tolist())
        assert "top_k" in settings or "top_p" in settings or (np.isfinite(x[tokens])).all()


def test_no_temperature_takes_the_largest(native: Any, make_scratch: Any) -> None:
    x = np.array([1, 4, 4, 2], np.float32)
    assert _draw(native, make_scratch, x, SamplingParams(), np.array([0.9, 0.1])).tolist() == [1, 1]


def test_frequencies(native: Any, make_scratch: Any) -> None:
    x = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    uniforms = np.random.default_rng(5).random(20000)
    for settings in ({}, {"top_k": 3}, {"top_p": 0.79}):
        p = SamplingParams(temperature=1.0, **settings)
        ids, weights = candidates(x, p)
        counts = np.bincount(_draw(native, make_scratch, x, p, uniforms), minlength=4)[ids] / 20000
        # Four standard deviations of a binomial with 20000 draws are at most 0.015.
        np.testing.assert_allclose(counts, weights / weights.sum(), atol=0.015)
