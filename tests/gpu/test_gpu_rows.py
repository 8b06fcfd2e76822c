"""Norms, quantization, rotary embedding, embedding, and the small ops around them, against their numpy references."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mixplan.runtime.ops import OPS, StepContext
from mixplan.runtime.packing import quantize_act

T = 3
CONTEXT = StepContext(np.zeros(T, np.int32), np.arange(T, dtype=np.int32))


def _reference(op: str, attrs: dict[str, Any], *inputs: np.ndarray | None) -> list[np.ndarray]:
    with np.errstate(all="ignore"):
        return [np.asarray(y) for y in OPS[op].reference(CONTEXT, attrs, inputs)]


def _same_codes(made: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    """q, scales, sums; a sum's last bit may tip a half over to the next code."""
    assert np.abs(made[0].astype(int) - wanted[0]).max() <= 1
    assert (made[0] == wanted[0]).mean() > 0.99
    np.testing.assert_allclose(made[1], wanted[1], rtol=1e-5)
    assert (np.abs(made[2] - wanted[2]) <= 3.01 * wanted[1]).all()


@pytest.mark.parametrize("group", [0, 32])
def test_quantize_act(group: int, kernel: Any) -> None:
    rng = np.random.default_rng(1)
    k, kp, groups = 100, 128, 4 if group else 1
    x = (rng.standard_normal((T, k)) * 10).astype(np.float32)
    x[1, :32] = 0  # a group of zeros has scale 1
    x[2, 40] = 3e5
    outputs = np.full((T, kp), 99, np.int8), np.zeros((T, groups), np.float32), np.zeros((T, groups), np.float32)
    made = kernel("quantize_act", (T,), x, *outputs, K=k, KP=kp, X_STRIDE=k, GROUP=group, BLOCK=128)[1:]
    for got, wanted in zip(made, quantize_act(x, group), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


@pytest.mark.parametrize("centred", [False, True])
def test_norms_of_heads_side_by_side(centred: bool, kernel: Any) -> None:
    """Two of three heads of each token, as the norm of queries in a merged projection sees them."""
    rng = np.random.default_rng(2)
    k, heads = 20, 2
    x = (rng.standard_normal((T, 3, k)) + 3).astype(np.float32)
    weight, bias = (rng.standard_normal(k).astype(np.float32) for _ in range(2))
    y = np.full((T, heads, k), np.nan, np.float32)
    made = kernel(
        "norm", (T * heads,), x, None, weight, bias if centred else None, None, y, None, None,
        K=k, KP=k, HEADS=heads, X_STRIDE=3 * k, HEAD_STRIDE=k, CENTRED=centred, EPS=1e-6, QUANTIZED=False, GROUP=0, BLOCK=32,
    )[-1]  # fmt: skip
    op, given = ("layer_norm", (weight, bias)) if centred else ("rms_norm", (weight,))
    np.testing.assert_allclose(made, _reference(op, {"eps": 1e-6}, x[:, :2], *given)[0], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(("centred", "group"), [(False, 0), (True, 32)])
def test_a_norm_after_a_residual_and_before_a_quantization(centred: bool, group: int, kernel: Any) -> None:
    rng = np.random.default_rng(3)
    k, kp, groups = 100, 128, 4 if group else 1
    x, residual = (rng.standard_normal((T, k)).astype(np.float32) for _ in range(2))
    weight = rng.standard_normal(k).astype(np.float32)
    kept = np.zeros((T, k), np.float32)
    outputs = np.full((T, kp), 99, np.int8), np.zeros((T, groups), np.float32), np.zeros((T, groups), np.float32)
    made = kernel(
        "norm", (T,), x, residual, weight, None, kept, *outputs,
        K=k, KP=kp, HEADS=1, X_STRIDE=k, HEAD_STRIDE=0, CENTRED=centred, EPS=1e-5, QUANTIZED=True, GROUP=group, BLOCK=128,
    )  # fmt: skip
    np.testing.assert_array_equal(made[3], x + residual)
    op = "layer_norm_quant" if centred else "rms_norm_quant"
    _same_codes(made[4:], _reference(op, {"eps": 1e-5, "group": group}, x + residual, weight))


@pytest.mark.parametrize("style", ["half", "interleaved"])
def test_rope(style: str, kernel: Any) -> None:
    """Of 20 dims the first 12 turn; heads stand apart."""
    rng = np.random.default_rng(4)
    heads, d, dr = 2, 20, 12
    wide = rng.standard_normal((1, T, heads + 1, d)).astype(np.float32)
    angles = rng.standard_normal((1, T, dr)).astype(np.float32)
    cos, sin = np.cos(angles), np.sin(angles)
    y = np.full((1, T, heads, d), np.nan, np.float32)
    sizes = {"H": heads, "D": d, "DR": dr, "X_STRIDE": (heads + 1) * d, "HEAD_STRIDE": d, "BLOCK": 32}
    made = kernel("rope", (T, heads), wide, cos, sin, y, INTERLEAVED=style == "interleaved", **sizes)[-1]
    np.testing.assert_allclose(made, _reference("rope", {"style": style}, wide[:, :, :heads], cos, sin)[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "name", ["f32", "bf16", "i8-asymmetric", "i5-32-minimum", "i4-64-two-level", "i3-64-minimum", "n2-32", "i6-32", "e4m3-64"]
)
def test_embedding(name: str, kernel: Any, weight: Any, arguments: Any, formats: Any) -> None:
    rng = np.random.default_rng(5)
    rows, columns, fmt = 37, 90, formats[name]
    packed = weight(fmt, rows, columns, rng)
    given, options = arguments(fmt, packed)
    ids = np.array([[36, 0, 17]], np.int64)
    y = np.full((1, T, columns), np.nan, np.float32)
    made = kernel("embedding", (T, 2), ids, *given, y, N=rows, K=columns, KP=fmt.padded_columns(columns), BLOCK=64, **options)[-1]
    attrs = {"format": fmt.name, "rows": rows, "columns": columns, "group_size": fmt.group_size}
    wanted = _reference("embedding", attrs, ids, packed["weight"], packed.get("scales"), packed.get("zeros"))[0]
    np.testing.assert_allclose(made, wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("op", ["sum", "mean", "amax", "amin"])
def test_reductions(op: str, kernel: Any) -> None:
    x = np.random.default_rng(9).standard_normal((T, 4, 6)).astype(np.float32)
    made = kernel("reduce", (2,), x, np.zeros((T, 6), np.float32), T, SIZE=4, INNER=6, OP=op, BLOCK=16)[-1]
    np.testing.assert_allclose(made, _reference(op, {"axes": (1,), "keepdims": False}, x)[0], rtol=1e-6, atol=1e-6)


def test_the_choice_of_experts(kernel: Any) -> None:
    x = np.random.default_rng(10).standard_normal((T, 11)).astype(np.float32)
    x[1, 4] = x[1, 9] = 5  # equals: the lowest index first
    p = kernel("softmax", (T,), x, np.zeros_like(x), K=11, LOG=False, BLOCK=16)[-1]
    np.testing.assert_allclose(p, _reference("softmax", {"axis": 1}, x)[0], rtol=1e-5)
    y, at = kernel("topk", (T,), x, np.zeros((T, 4), np.float32), np.zeros((T, 4), np.int64), K=11, COUNT=4, BLOCK=16)[1:]
    wanted = _reference("topk", {"k": 4, "axis": 1, "largest": True}, x)
    np.testing.assert_array_equal(y, wanted[0])
    np.testing.assert_array_equal(at, wanted[1])


def test_rows_and_elements_by_index(kernel: Any) -> None:
    x = np.random.default_rng(11).standard_normal((5, 7)).astype(np.float32)
    index = np.array([4, 0, 4, -1], np.int64)
    made = kernel("take", (2,), x, index, np.zeros((4, 7), np.float32), 1, 4, 5, INNER=7, OUTER_STRIDE=0, X_STRIDE=7, BLOCK=16)[-1]
    np.testing.assert_array_equal(made, x[index])
    wide = np.random.default_rng(12).standard_normal((3, 5, 2)).astype(np.float32)
    sizes = {"INNER": 2, "OUTER_STRIDE": 10, "X_STRIDE": 2, "BLOCK": 16}
    made = kernel("take", (2,), wide, index, np.zeros((3, 4, 2), np.float32), 3, 4, 5, **sizes)[-1]
    np.testing.assert_array_equal(made, wide[:, index])
    at = np.array([[6, 0], [1, 1], [0, 5], [2, 3], [4, 4]], np.int64)
    made = kernel("gather", (1,), x, at, np.zeros((5, 2), np.float32), 5, SIZE=7, COUNT=2, BLOCK=16)[-1]
    np.testing.assert_array_equal(made, np.take_along_axis(x, at, axis=1))


def test_products_of_activations(kernel: Any) -> None:
    """[3, 5, 37] by one transposed [37, 9] for all: tails in every dim, a stride of 0, rows that are columns."""
    rng = np.random.default_rng(13)
    a, b = rng.standard_normal((3, 5, 37)).astype(np.float32), rng.standard_normal((9, 37)).astype(np.float32)
    strides = {"A_BATCH": 185, "A_ROW": 37, "A_COLUMN": 1, "B_BATCH": 0, "B_ROW": 1, "B_COLUMN": 37}
    y = np.full((3, 5, 9), np.nan, np.float32)
    made = kernel("matmul", (1, 1, 3), a, b, y, 5, N=9, K=37, BLOCK_M=16, BLOCK_N=16, BLOCK_K=32, **strides)[-1]
    np.testing.assert_allclose(made, a @ b.T, rtol=1e-5, atol=1e-5)
