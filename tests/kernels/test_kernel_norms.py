"""Norms, quantization and rotary embedding against the numpy references."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

WIDTHS = [5, 48, 100, 576]
GROUPS = [0, 32, 128]
KERNELS = [f"{op}<{n}>" for op in ("rms_norm", "layer_norm") for n in WIDTHS]
KERNELS += [f"{op}<{n},{g}>" for op in ("quantize_act", "rms_norm_quant", "layer_norm_quant") for n in WIDTHS for g in GROUPS]
ROPES = [(64, 64), (80, 32), (20, 10)]
KERNELS += [f"rope<{d},{dr},Rope::{s}>" for d, dr in ROPES for s in ("Half", "Interleaved")]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("op", ["rms_norm", "layer_norm"])
def test_norm(native: Any, reference: Any, op: str, width: int) -> None:
    rng = np.random.default_rng(width)
    tokens, heads, row = 5, 3, 3 * width + 7
    store = (rng.standard_normal((tokens, row)) * 3 + 1).astype(np.float32)
    x = store[:, : heads * width].reshape(tokens, heads, width)
    for weight in (rng.standard_normal(width).astype(np.float32), None):
        bias = rng.standard_normal(width).astype(np.float32) if op == "layer_norm" and weight is not None else None
        inputs = [x, weight] if op == "rms_norm" else [x, weight, bias]
        (want,) = reference(op, {"eps": 1e-5}, inputs)
        y = np.full((tokens, heads, width), 9, np.float32)
        native.call(
            f"{op}<{width}>",
            threads=2,
            x=store,
            ldx=row,
            ldx_inner=width,
            weight=weight,
            bias=bias,
            y=y,
            ldy=heads * width,
            ldy_inner=width,
            outer=tokens,
            inner=heads,
            eps=1e-5,
        )
        np.testing.assert_allclose(y, want, rtol=2e-6, atol=4e-6)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("width", WIDTHS)
def test_quantize_act(native: Any, reference: Any, width: int, group: int) -> None:
    """Bit for bit: the kernel divides and rounds as the reference does. Rows of zeros, ties and denormals included."""
    rng = np.random.default_rng(width + group)
    x = (rng.standard_normal((9, width)) * 10.0 ** rng.integers(-3, 4, (9, 1))).astype(np.float32)
    x[1] = 0
    x[2] = np.arange(width) % 255 - 127 + 0.5
    x[2, 0] = 127
    x[3] = 1e-41
    q, scales, sums = reference("quantize_act", {"group": group}, [x])
    got = [np.full_like(a, 3) for a in (q, scales, sums)]
    native.call(
        f"quantize_act<{width},{group}>",
        threads=2,
        x=x,
        ldx=width,
        q=got[0],
        ldq=q.shape[1],
        scales=got[1],
        sums=got[2],
        ldg=scales.shape[1],
        m=9,
    )
    for a, b in zip(got, (q, scales, sums), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_nan_reaches_the_scale(native: Any) -> None:
    x = np.ones((2, 48), np.float32)
    x[0, 37] = np.nan
    q, scales, sums = np.zeros((2, 64), np.int8), np.zeros((2, 2), np.float32), np.zeros((2, 2), np.float32)
    native.call("quantize_act<48,32>", x=x, ldx=48, q=q, ldq=64, scales=scales, sums=sums, ldg=2, m=2)
    assert np.isnan(scales[0, 1]) and np.isfinite(scales[0, 0]) and np.isfinite(scales[1]).all()


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("op", ["rms_norm_quant", "layer_norm_quant"])
def test_norm_quant(native: Any, reference: Any, op: str, width: int, group: int) -> None:
    """A code may differ by one where the norm's rounding moves a value over a tie."""
    rng = np.random.default_rng(width + group)
    x, weight, bias = (rng.standard_normal(s).astype(np.float32) for s in ((7, width), width, width))
    inputs = [x, weight] if op == "rms_norm_quant" else [x, weight, bias]
    q, scales, sums = reference(op, {"eps": 1e-6, "group": group}, inputs)
    a, b, c = (np.zeros_like(v) for v in (q, scales, sums))
    native.call(
        f"{op}<{width},{group}>",
        threads=2,
        x=x,
        ldx=width,
        weight=weight,
        bias=bias,
        q=a,
        ldq=q.shape[1],
        scales=b,
        sums=c,
        ldg=scales.shape[1],
        m=7,
        eps=1e-6,
    )
    assert np.abs(a.astype(int) - q).max() <= 1
    assert (a != q).mean() < 0.01
    np.testing.assert_allclose(b, scales, rtol=2e-6)
    step = np.abs(a.astype(int) - q).sum() * np.abs(scales).max()
    np.testing.assert_allclose(c, sums, rtol=1e-5, atol=1e-5 * np.abs(sums).max() + step)


@pytest.mark.parametrize("style", ["Half", "Interleaved"])
@pytest.mark.parametrize(("size", "rotated"), ROPES)
def test_rope(native: Any, reference: Any, size: int, rotated: int, style: str) -> None:
    rng = np.random.default_rng(size)
    tokens, heads, row = 6, 3, 3 * size + 11
    store = rng.standard_normal((tokens, row)).astype(np.float32)
    x = store[:, : heads * size].reshape(1, tokens, heads, size)
    cos, sin = (rng.standard_normal((1, tokens, rotated)).astype(np.float32) for _ in range(2))
    (want,) = reference("rope", {"style": style.lower()}, [x, cos, sin])
    kernel, place = f"rope<{size},{rotated},Rope::{style}>", {"ldx": row, "ldx_head": size, "cos": cos, "sin": sin, "ldc": rotated}
    y = np.zeros((tokens, heads, size), np.float32)
    native.call(kernel, threads=3, x=store, **place, y=y, ldy=heads * size, ldy_head=size, t=tokens, heads=heads)
    np.testing.assert_allclose(y, want[0], rtol=1e-6, atol=1e-6)
    tail = store[:, heads * size :].copy()
    native.call(kernel, threads=3, x=store, **place, y=store, ldy=row, ldy_head=size, t=tokens, heads=heads)
    np.testing.assert_array_equal(store[:, : heads * size].reshape(y.shape), y)
    np.testing.assert_array_equal(store[:, heads * size :], tail)
