"""The matrix kernels against the numpy references of the ops, in every packed format, with tails in every dimension."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mixplan.runtime.dtypes import bf16_to_f32, f32_to_bf16
from mixplan.runtime.formats import LANES, ceil_div
from mixplan.runtime.ops import OPS, StepContext
from mixplan.runtime.packing import concat_experts, interleave_gated, quantize_act

T, N, K = 5, 40, 136  # tails: of 16 rows, of 32 packed rows, of every group
CONTEXT = StepContext(np.zeros(T, np.int32), np.arange(T, dtype=np.int32))
NAMES = (
    *("f32", "bf16", "i8", "i8-asymmetric", "i8-64", "i6-32", "i5-32-minimum", "i4-32", "i4-128-asymmetric"),
    *("i4-64-two-level", "i3-64-minimum", "i2-32-asymmetric", "n5-32", "n4-64-two-level", "n2-32"),
)


def _reference(op: str, attrs: dict[str, Any], *inputs: np.ndarray | None) -> np.ndarray:
    return np.asarray(OPS[op].reference(CONTEXT, attrs, inputs)[0])


def _attrs(fmt: Any, rows: int = N, **more: Any) -> dict[str, Any]:
    return {"format": fmt.name, "rows": rows, "columns": K, "group_size": fmt.group_size, **more}


def _close(got: np.ndarray, wanted: np.ndarray, bits: int) -> None:
    """Relative to the result's size: `bits` significant ones of each factor, whose errors add up at random."""
    size = float(np.abs(wanted).mean())
    assert float(np.abs(got - wanted).max()) < size * 2.0 ** (1 - bits), (got, wanted)


@pytest.mark.parametrize("name", NAMES)
def test_float_activations(name: str, kernel: Any, weight: Any, arguments: Any, formats: Any) -> None:
    rng = np.random.default_rng(1)
    fmt = formats[name]
    packed = weight(fmt, N, K, rng)
    given, options = arguments(fmt, packed)
    x = rng.standard_normal((T, K + 8)).astype(np.float32)[:, :K]  # rows further apart than they are long
    wide = np.concatenate([x, np.full((T, 8), np.nan, np.float32)], axis=1)
    bias, residual = (rng.standard_normal(shape).astype(np.float32) for shape in ((N,), (T, N)))
    y = np.full((T, N), np.nan, np.float32)
    exact = name in ("f32", "i4-32")  # i4 in f32 also shows that the codes and scales are right to the last bit
    made = kernel(
        "gemm_a16",
        (1, ceil_div(N, 32), 1),
        *(wide, *given, bias, residual, y, None, None, T),
        N=N, K=K, KP=fmt.padded_columns(K), BLOCKS=ceil_div(N, LANES), X_STRIDE=K + 8, RESIDUAL_STRIDE=N, GATE="", QUANT=0,
        DOT="f32" if exact else "bf16i", SPLIT=1, BLOCK_M=16, BLOCK_N=32, BLOCK_K=64 if fmt.group_size != 128 else 32, **options,
    )[-1]  # fmt: skip
    rounded = x if exact else bf16_to_f32(f32_to_bf16(x))
    wanted = _reference("linear", _attrs(fmt), rounded, packed["weight"], packed.get("scales"), packed.get("zeros"), bias, residual)
    # The reference rounds no weight. Codes less a zero point are exact in bf16; scaled ones are rounded.
    per_row = not fmt.quantized or (fmt.group_size == 0 and not fmt.has_minimum)
    _close(made, wanted, 18 if exact or per_row else 7)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("f32", "bf16", "n2-32", "i6-32")])
def test_integer_activations(name: str, kernel: Any, weight: Any, arguments: Any, formats: Any) -> None:
    rng = np.random.default_rng(2)
    fmt = formats[name]
    packed = weight(fmt, N, K, rng)
    given, options = arguments(fmt, packed)
    q, scales, sums = quantize_act(rng.standard_normal((T, K)).astype(np.float32), fmt.group_size)
    residual = rng.standard_normal((T, N)).astype(np.float32)
    y = np.full((T, N), np.nan, np.float32)
    made = kernel(
        "gemm_a8",
        (1, ceil_div(N, 32), 1),
        *(q, scales, sums, *given, None, residual, y, None, None, T),
        N=N, KP=fmt.padded_columns(K), BLOCKS=ceil_div(N, LANES), RESIDUAL_STRIDE=N, GATE="", QUANT=0, SPLIT=1,
        BLOCK_M=16, BLOCK_N=32, BLOCK_K=32 if fmt.group_size in (32, 64) else 64, **options,
    )[-1]  # fmt: skip
    wanted = _reference("linear_q", _attrs(fmt), q, scales, sums, packed["weight"], packed["scales"], packed.get("zeros"), None, residual)
    _close(made, wanted, 18)


@pytest.mark.parametrize("integers", [False, True])
@pytest.mark.parametrize("name", ["i8", "i4-32"])
def test_a_gated_layer_whose_result_is_quantized(name: str, integers: bool, kernel: Any, weight: Any, arguments: Any, formats: Any) -> None:
    rng = np.random.default_rng(3)
    fmt = formats[name]
    packed = interleave_gated(weight(fmt, N, K, rng), weight(fmt, N, K, rng))
    given, options = arguments(fmt, packed)
    x = rng.standard_normal((T, K)).astype(np.float32) * 4
    bias = rng.standard_normal((2, N)).astype(np.float32)
    group, groups = 32, ceil_div(N, 32)
    outputs = np.full((T, groups * group), 99, np.int8), *(np.full((T, groups), np.nan, np.float32) for _ in range(2))
    common = {"N": N, "KP": fmt.padded_columns(K), "BLOCKS": 2 * ceil_div(N, LANES), "RESIDUAL_STRIDE": 0, "GATE": "gelu_tanh"}
    common |= {"QUANT": group, "SPLIT": 1, "BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 32, **options}
    q, scales, sums = quantize_act(x, fmt.group_size)
    packed_inputs = (packed["weight"], packed["scales"], None, bias)
    attrs = _attrs(fmt, activation="gelu_tanh")
    if integers:
        made = kernel("gemm_a8", (1, groups, 1), q, scales, sums, *given, bias, None, *outputs, T, **common)[-3:]
        y = _reference("gated_linear_q", attrs, q, scales, sums, *packed_inputs)
    else:
        made = kernel("gemm_a16", (1, groups, 1), x, *given, bias, None, *outputs, T, K=K, X_STRIDE=K, DOT="f32", **common)[-3:]
        y = _reference("gated_linear", attrs, x, *packed_inputs)
    wanted_q, wanted_scales, wanted_sums = quantize_act(y, group)
    assert np.abs(made[0].astype(int) - wanted_q).max() <= 1  # the product's last bits may tip a half over
    assert (made[0] == wanted_q).mean() > 0.99
    np.testing.assert_allclose(made[1], wanted_scales, rtol=2e-5)
    # Each code that tips over moves the sum by one scale.
    assert (np.abs(made[2] - wanted_sums) <= 3.01 * wanted_scales).all()


@pytest.mark.parametrize("integers", [False, True])
def test_split_columns(integers: bool, kernel: Any, weight: Any, arguments: Any, formats: Any) -> None:
    """Three parts of 5 steps: the last one is shorter. The zero points' share must be counted once."""
    rng = np.random.default_rng(4)
    fmt = formats["i8-asymmetric"]
    packed = weight(fmt, N, K, rng)
    given, options = arguments(fmt, packed)
    x = rng.standard_normal((T, K)).astype(np.float32)
    q, scales, sums = quantize_act(x, 0)
    bias = rng.standard_normal(N).astype(np.float32)
    blocks = ceil_div(N, LANES)
    partial = np.full((3, T, blocks * 16), np.nan, np.float32)
    common = {"N": N, "KP": fmt.padded_columns(K), "BLOCKS": blocks, "RESIDUAL_STRIDE": 0, "GATE": "", "QUANT": 0, "SPLIT": 3}
    common |= {"BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 32, **options}
    if integers:
        partial = kernel("gemm_a8", (1, 2, 3), q, scales, sums, *given, None, None, partial, None, None, T, **common)[-1]
        wanted = _reference("linear_q", _attrs(fmt), q, scales, sums, packed["weight"], packed["scales"], packed["zeros"], bias)
    else:
        partial = kernel("gemm_a16", (1, 2, 3), x, *given, None, None, partial, None, None, T, K=K, X_STRIDE=K, DOT="f32", **common)[-1]
        wanted = _reference("linear", _attrs(fmt), x, packed["weight"], packed["scales"], packed["zeros"], bias)
    y = np.full((T, N), np.nan, np.float32)
    sizes = {"N": N, "BLOCKS": blocks, "RESIDUAL_STRIDE": 0, "GATE": "", "QUANT": 0, "SPLIT": 3, "BLOCK_M": 4, "BLOCK_N": 32}
    made = kernel("split_sum", (2, 2), partial, bias, None, y, None, None, T, **sizes)[-1]
    _close(made, wanted, 16)


def test_fp8_rounds_to_the_nearest_number(kernel: Any, e4m3: np.ndarray) -> None:
    values = e4m3
    finite = np.sort(values[np.isfinite(values)])
    rng = np.random.default_rng(5)
    middles = (finite[1:] + finite[:-1]) / 2  # ties, which go to the even code
    x = np.concatenate([finite, middles, rng.standard_normal(300).astype(np.float32) * 3, [448.0, 0.0, 1e-5]]).astype(np.float32)[None]
    size, width = x.shape[1], 1024
    q, scales = np.zeros((1, 832), np.uint8), np.zeros(1, np.float32)
    _, q, scales = kernel("quantize_fp8", (1,), x, q, scales, K=size, KP=832, X_STRIDE=size, BLOCK=width)
    assert scales == 1.0
    assert not q[0, size:].any()
    best = np.abs(values[None, :] - x[0][:, None])
    best[:, [0x7F, 0xFF]] = np.inf
    got = best[np.arange(size), q[0, :size]]
    np.testing.assert_array_equal(got, best.min(axis=1))
    ties = (best == best.min(axis=1, keepdims=True)).sum(axis=1) > 1
    assert ties.sum() > 200
    # Zero has two codes, both at the same distance; of other ties the even code is taken.
    assert (q[0, :size][ties & (x[0] != 0)] % 2 == 0).all()


@pytest.mark.parametrize(("native", "groups"), [(False, 1), (True, 1), (False, 5)])
def test_fp8_product(native: bool, groups: int, kernel: Any, e4m3: np.ndarray) -> None:
    rng = np.random.default_rng(6)
    kp, values = 160, e4m3
    x = rng.standard_normal((T, K)).astype(np.float32)
    q, scales = np.zeros((T, kp), np.uint8), np.zeros(T, np.float32)
    _, q, scales = kernel("quantize_fp8", (T,), x, q, scales, K=K, KP=kp, X_STRIDE=K, BLOCK=256)
    codes = rng.integers(0, 0x7F, (48, kp)).astype(np.uint8) | (rng.integers(0, 2, (48, kp)) << 7).astype(np.uint8)
    ws = (rng.random((3, groups, 16)) / 1000).astype(np.float32)
    words = np.ascontiguousarray(codes.reshape(3, 16, kp // 4, 4).transpose(0, 2, 1, 3)).view(np.int32).reshape(-1)
    y = np.full((T, N), np.nan, np.float32)
    made = kernel(
        "gemm_fp8", (1, 2, 1), q, scales, words, ws, None, None, y, None, None, T,
        N=N, KP=kp, BLOCKS=3, RESIDUAL_STRIDE=0, GATE="", QUANT=0, NATIVE=native, SPLIT=1, BLOCK_M=16, BLOCK_N=32,
        GROUP=0 if groups == 1 else 32, BLOCK_K=64 if groups == 1 else 32,
    )[-1]  # fmt: skip
    by_column = np.repeat(ws.transpose(0, 2, 1).reshape(48, groups), kp // groups, axis=1)
    wanted = (values[q] * scales[:, None]).astype(np.float64) @ (values[codes] * by_column).T.astype(np.float64)
    _close(made, wanted[:, :N], 16)


@pytest.mark.parametrize("shared", [False, True])
def test_experts(shared: bool, kernel: Any, weight: Any, arguments: Any, formats: Any) -> None:
    """Pairs sorted by expert; one expert has more rows than a tile, one has none, and some pairs have no expert."""
    rng = np.random.default_rng(7)
    tokens, chosen, experts = 21, 2, 5
    fmt = formats["i4-32"]
    packed = concat_experts([weight(fmt, N, K, rng) for _ in range(experts)])
    given, options = arguments(fmt, packed)
    ids = rng.choice([0, 1, 3, 4, experts], (tokens, chosen), p=[0.6, 0.1, 0.1, 0.1, 0.1]).astype(np.int64)
    x = rng.standard_normal((tokens, 1 if shared else chosen, K)).astype(np.float32)
    bias = rng.standard_normal((experts, N)).astype(np.float32)
    pairs = tokens * chosen
    tiles = min(pairs, ceil_div(pairs, 16) + experts + 1)
    order, of = np.full(tiles * 16, -7, np.int32), np.full(tiles, -7, np.int32)
    _, order, of = kernel("route", (experts + 1,), ids, order, of, pairs, tiles, E=experts, BLOCK_M=16, BLOCK_E=8, BLOCK=16)
    used = order.reshape(tiles, 16)[of >= 0]
    assert sorted(used[used >= 0].tolist()) == list(range(pairs))
    for row, expert in zip(used, of[of >= 0], strict=True):
        assert (ids.reshape(-1)[row[row >= 0]] == expert).all()
    assert (of >= -1).all()
    y = np.full((tokens, chosen, N), np.nan, np.float32)
    made = kernel(
        "grouped_gemm", (tiles, 2), x, order, of, *given, bias, y,
        J=chosen, SHARED=shared, E=experts, N=N, K=K, KP=fmt.padded_columns(K), BLOCKS=ceil_div(N, LANES), X_STRIDE=K, DOT="f32",
        BLOCK_M=16, BLOCK_N=32, BLOCK_K=64, **options,
    )[-1]  # fmt: skip
    wanted = _reference("grouped_linear", _attrs(fmt, experts=experts), x, ids, packed["weight"], packed["scales"], None, bias)
    assert (wanted[ids == experts] == 0).all()
    _close(made, wanted, 18)
    np.testing.assert_array_equal(made[ids == experts], 0)
