"""The vector functions against float64, over their whole range."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

KERNELS: list[str] = []
NAMES = ["vexp", "vexp_negative", "vsigmoid", "vtanh", "verf", "vsilu", "vgelu", "vgelu_tanh"]
_BODY = "{ for (int64_t i = 0; i < n; i += 16) store(y + i, mp::%s(load(x + i))); }"
EXTRA = "\n".join(f'extern "C" void {name}(const float* x, float* y, int64_t n) {_BODY % name}' for name in NAMES)
EXTRA += """
extern "C" void halves(const uint16_t* h, float* f, uint16_t* back, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) {
    f32x16 v = load_f16(h + i);
    store(f + i, v);
    store_as(back + i, f32_to_f16(v));
  }
}
extern "C" void to_half(const float* f, uint16_t* h, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) store_as(h + i, f32_to_f16(load(f + i)));
}
"""


def _run(native: Any, name: str, x: np.ndarray) -> np.ndarray:
    y = np.empty_like(x)
    getattr(native.library, name)(x.ctypes.data_as(ctypes.c_void_p), y.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(len(x)))
    return y


def _vector(function: Callable[[float], float]) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: np.array([function(v) for v in x.tolist()])


EXACT: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "vexp": np.exp,
    "vexp_negative": np.exp,
    "vsigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "vtanh": np.tanh,
    "verf": _vector(math.erf),
    "vsilu": lambda x: x / (1 + np.exp(-x)),
    "vgelu": lambda x: x * 0.5 * _vector(lambda v: math.erfc(-v / math.sqrt(2)))(x),
    "vgelu_tanh": lambda x: x / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
}


@pytest.mark.parametrize("name", NAMES)
def test_relative_error(native: Any, name: str) -> None:
    x = np.concatenate([np.linspace(-30, 30, 40000), np.linspace(-1, 1, 20000), np.geomspace(1e-30, 1e-3, 4000)]).astype(np.float32)
    x = np.concatenate([x, np.linspace(-87, 88, 16000, dtype=np.float32)])
    x = x[: len(x) // 16 * 16]
    if name == "vexp_negative":
        x = np.maximum(-np.abs(x), -87)  # below, softmax's weights are 0
    with np.errstate(all="ignore"):
        want = EXACT[name](x.astype(np.float64))
    got = _run(native, name, x)
    # gelu's tail multiplies the argument's rounding by the argument's square; there the absolute error is what counts.
    floor = 1e-4 if name in ("vgelu", "vgelu_tanh") else np.finfo(np.float32).tiny
    error = np.abs(got - want) / np.maximum(np.abs(want), floor)
    assert error.max() <= 2e-6, (x[error.argmax()], got[error.argmax()], want[error.argmax()])


@pytest.mark.parametrize("name", NAMES)
def test_special_values(native: Any, name: str) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 100.0, -110.0, 1e30, -1e30] + [0.0] * 7, np.float32)
    if name == "vexp_negative":
        x = np.where(x > 0, -x, x).astype(np.float32)
    got = _run(native, name, x).astype(np.float64)
    # x * sigmoid(x) at minus infinity is NaN as a formula; only finite values count there.
    rest = slice(3, None) if name in ("vgelu", "vgelu_tanh", "vsilu") else slice(1, None)
    with np.errstate(all="ignore"):
        want = EXACT[name](x[rest].astype(np.float64))
        huge = np.abs(want) > np.finfo(np.float32).max
        want[huge] = np.sign(want[huge]) * np.inf
    assert np.isnan(got[0])
    np.testing.assert_allclose(got[rest], want, rtol=2e-6, atol=1e-37)


def test_every_half(native: Any) -> None:
    """All 65536 f16 patterns to f32 and back; rounding at ties of random f32 values."""
    h = np.arange(1 << 16, dtype=np.uint16)
    f, back = np.empty(1 << 16, np.float32), np.empty(1 << 16, np.uint16)
    pointer = ctypes.c_void_p
    native.library.halves(*(a.ctypes.data_as(pointer) for a in (h, f, back)), ctypes.c_int64(1 << 16))
    want = h.view(np.float16).astype(np.float32)
    nan = np.isnan(want)
    np.testing.assert_array_equal(f[~nan].view(np.uint32), want[~nan].view(np.uint32))
    np.testing.assert_array_equal(back[~nan], h[~nan])
    assert np.isnan(f[nan]).all() and np.isnan(back.view(np.float16)[nan]).all()
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(1 << 16) * 10.0 ** rng.integers(-9, 6, 1 << 16)).astype(np.float32)
    finite = want[:0x7C00]
    x[: len(finite) - 1] = (finite[1:] + finite[:-1]) / 2
    native.library.to_half(*(a.ctypes.data_as(pointer) for a in (x, back)), ctypes.c_int64(1 << 16))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(back.view(np.float16), x.astype(np.float16))
