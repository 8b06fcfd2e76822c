"""Ops on packed weights against float64 products of the unpacked numbers, for every format, with tails in rows and columns."""

from __future__ import annotations

import numpy as np
import pytest

from mixplan.runtime.codebooks import CODEBOOKS
from mixplan.runtime.dtypes import DType, bf16_to_f32, f32_to_bf16
from mixplan.runtime.errors import PlanError, RequestError
from mixplan.runtime.formats import WeightFormat
from mixplan.runtime.ops import op_spec
from mixplan.runtime.packing import Quantized, concat_experts, dequantize, interleave_gated, pack, packed_layout, quantize_act
from mixplan.runtime.plan import Sym

QUANTIZED = [
    WeightFormat.of(n, g, s) for n, g in (("i8", 0), ("i8", 32), ("i8", 128), ("i4", 32), ("i4", 64), ("i4", 128)) for s in (True, False)
]
NEW = [
    WeightFormat.of("i6", 32),
    WeightFormat.of("i5", 32, False, DType.f16, DType.f16),
    WeightFormat.of("i3", 64, False, DType.f32),
    WeightFormat.of("i2", 32, True, DType.i8),
    WeightFormat.of("i8", 64, True, DType.i8),
    WeightFormat.of("i4", 32, False, DType.i8, DType.f16),
    WeightFormat.of("n5", 32),
    WeightFormat.of("n4", 32, True, DType.i8),
    WeightFormat.of("n3", 128),
    WeightFormat.of("n2", 64, True, DType.i8),
]
QUANTIZED += NEW
FORMATS = [WeightFormat.of("f32"), WeightFormat.of("bf16"), *QUANTIZED]
SIZES = [(16, 128), (37, 75), (3, 200)]


def name_of(value):
    if not isinstance(value, WeightFormat):
        return str(value)
    zeros = "" if value.symmetric else f"-asymmetric-{value.zero_dtype}"
    return f"{value.name}-{value.group_size}-{value.scale_dtype}{zeros}"


def random_rows(fmt, rows, columns, rng):
    """Codes over the whole range, scales that keep weights about 1."""
    groups = fmt.groups(columns)
    scales = rng.uniform(0.5, 1.5, (rows, groups)) / (512 if fmt.nonuniform else max(4 * fmt.levels, 64) if fmt in NEW else fmt.levels)
    if fmt.two_level:
        row = bf16_to_f32(f32_to_bf16((scales.max(1, keepdims=True) / 120).astype(np.float32)))
        scales = row * np.rint(scales / row) * rng.choice([1, -1], scales.shape)
    zeros = None
    if not fmt.symmetric:
        zeros = rng.standard_normal((rows, groups)) / 8 if fmt.has_minimum else rng.integers(0, fmt.levels, (rows, groups))
        zeros = zeros.astype(fmt.zero_dtype.numpy)
    codes = rng.integers(0, fmt.levels, (rows, columns), np.uint8)
    return Quantized(codes, scales.astype(np.float32 if fmt.two_level else fmt.scale_dtype.numpy), zeros)


def weight(fmt, rows, columns, seed=0):
    """(packed arrays, the numbers they stand for in f32)."""
    rng = np.random.default_rng(seed)
    if not fmt.quantized:
        w = rng.standard_normal((rows, columns)).astype(np.float32) / 8
        return pack(fmt, w), w if fmt.bits == 32 else bf16_to_f32(f32_to_bf16(w))
    values = random_rows(fmt, rows, columns, rng)
    return pack(fmt, values), dequantize(fmt, values)


def attrs_of(fmt, rows, columns, **more):
    return {"format": fmt.name, "rows": rows, "columns": columns, "group_size": fmt.group_size, **more}


def roles(packed):
    return [packed.get(role) for role in ("weight", "scales", "zeros")]


def activations(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def exact(x, w):
    return (x.astype(np.float64) @ w.T.astype(np.float64)).astype(np.float32)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("fmt", FORMATS, ids=name_of)
def test_linear(check_op, fmt, size):
    packed, w = weight(fmt, *size)
    bias = np.linspace(-1, 1, size[0], dtype=np.float32)

    def build(t, r, rng):
        return [activations(rng, 1, r, size[1]), *roles(packed), bias, activations(rng, 1, r, size[0])]

    check_op("linear", attrs_of(fmt, *size), build, lambda x, _w, _s, _z, b, res: exact(x, w) + b + res, "f32_sum")
    check_op("linear", attrs_of(fmt, *size), lambda t, r, rng: build(t, r, rng)[:4], lambda x, *_: exact(x, w), "f32_sum")


@pytest.mark.parametrize("fmt", FORMATS[:4], ids=name_of)
def test_linear_rounds_its_activations_to_bf16(check_op, fmt):
    packed, w = weight(fmt, 37, 75)
    check_op(
        "linear",
        attrs_of(fmt, 37, 75, activation_dtype="bf16"),
        lambda t, r, rng: [activations(rng, 1, t, 75), *roles(packed)],
        lambda x, *_: exact(bf16_to_f32(f32_to_bf16(x)), w),
        "bf16",
    )


def test_linear_longer_than_one_stretch_of_rows(run_op):
    fmt = WeightFormat.of("i4", 32)
    packed, w = weight(fmt, 4100, 32)
    x = activations(np.random.default_rng(1), 2, 32)
    np.testing.assert_allclose(run_op("linear", x, *roles(packed), **attrs_of(fmt, 4100, 32)), exact(x, w), rtol=1e-5, atol=1e-5)


def integer_product(fmt, columns, q, scales, sums, rows):
    """The definition, group by group, with exact integers."""
    codes, weight_scales, zeros = rows.codes, rows.scales.astype(np.float64), rows.zeros
    codes = CODEBOOKS[fmt.bits][codes] if fmt.nonuniform else codes
    if zeros is None:
        zeros = np.full(weight_scales.shape, 0 if fmt.nonuniform else fmt.zero_point)
    group = fmt.group_size or q.shape[-1]
    y = np.zeros((*q.shape[:-1], len(codes)))
    for g in range(scales.shape[-1]):
        part = slice(g * group, min((g + 1) * group, columns))
        dot = q[..., part].astype(np.int64) @ codes[:, part].T.astype(np.int64)
        scaled, total = scales[..., g, None].astype(np.float64) * dot, sums[..., g, None].astype(np.float64)
        if fmt.has_minimum:
            y += scaled * weight_scales[:, g] + total * zeros[:, g].astype(np.float64)
        else:
            y += (scaled - zeros[:, g] * total) * weight_scales[:, g]
    return y.astype(np.float32)


def integer_case(fmt, rows, columns, seed=0):
    """(packed, function of (q, scales, sums) giving the product)."""
    values = random_rows(fmt, rows, columns, np.random.default_rng(seed))
    return pack(fmt, values), lambda q, s, t: integer_product(fmt, columns, q, s, t, values)


@pytest.mark.parametrize("size", [*SIZES, (5, 1100)], ids=str)
@pytest.mark.parametrize("fmt", QUANTIZED, ids=name_of)
def test_linear_q(check_op, fmt, size):
    packed, oracle = integer_case(fmt, *size)
    bias = np.linspace(-1, 1, size[0], dtype=np.float32)

    def build(t, r, rng):
        q, scales, sums = quantize_act(activations(rng, 1, r, size[1]), fmt.group_size)
        return [q, scales, sums, *roles(packed), bias, activations(rng, 1, r, size[0])]

    check_op("linear_q", attrs_of(fmt, *size), build, lambda q, s, t, _w, _s, _z, b, res: oracle(q, s, t) + b + res, "i8")
    check_op("linear_q", attrs_of(fmt, *size), lambda t, r, rng: build(t, r, rng)[:6], lambda q, s, t, *_: oracle(q, s, t), "i8")


@pytest.mark.parametrize("fmt", QUANTIZED, ids=name_of)
def test_linear_q_of_the_largest_integers_is_exact(run_op, fmt):
    columns = 1024
    codes = np.full((16, columns), fmt.levels - 1, np.uint8)
    scales = np.ones((16, fmt.groups(columns)), np.float32 if fmt.two_level else fmt.scale_dtype.numpy)
    zeros = None if fmt.symmetric else np.zeros((16, fmt.groups(columns)), fmt.zero_dtype.numpy)
    packed = pack(fmt, Quantized(codes, scales, zeros))
    q = np.full((1, columns), 127, np.int8)
    ones = np.ones((1, fmt.groups(columns)), np.float32)
    sums = np.full_like(ones, 127 * columns / fmt.groups(columns))
    largest = CODEBOOKS[fmt.bits][-1] if fmt.nonuniform else fmt.levels - 1 - (fmt.zero_point if fmt.symmetric else 0)
    y = run_op("linear_q", q, ones, sums, *roles(packed), **attrs_of(fmt, 16, columns))
    np.testing.assert_array_equal(y, np.full((1, 16), np.float32(127 * columns * int(largest))))


def silu64(x):
    return x / (1 + np.exp(-x))


@pytest.mark.parametrize("fmt", FORMATS, ids=name_of)
def test_gated_linear(check_op, fmt):
    (gate, w_gate), (up, w_up) = weight(fmt, 37, 75, seed=1), weight(fmt, 37, 75, seed=2)
    packed = interleave_gated(gate, up)
    bias = np.stack([np.linspace(-1, 1, 37), np.linspace(1, 0, 37)]).astype(np.float32)
    attrs = attrs_of(fmt, 37, 75, activation="silu")

    def build(t, r, rng):
        return [activations(rng, 1, t, 75), *roles(packed), bias]

    check_op("gated_linear", attrs, build, lambda x, _w, _s, _z, b: silu64(exact(x, w_gate) + b[0]) * (exact(x, w_up) + b[1]), "f32_sum")
    check_op(
        "gated_linear",
        {**attrs, "activation": "relu2", "activation_dtype": "bf16"},
        lambda t, r, rng: build(t, r, rng)[:4],
        lambda x, *_: np.maximum(exact(bf16_to_f32(f32_to_bf16(x)), w_gate), 0) ** 2 * exact(bf16_to_f32(f32_to_bf16(x)), w_up),
        "bf16",
    )


@pytest.mark.parametrize("fmt", QUANTIZED, ids=name_of)
def test_gated_linear_q(check_op, fmt):
    (gate, gate_product), (up, up_product) = integer_case(fmt, 37, 75, seed=1), integer_case(fmt, 37, 75, seed=2)
    packed = interleave_gated(gate, up)
    bias = np.stack([np.linspace(-1, 1, 37), np.linspace(1, 0, 37)]).astype(np.float32)

    def build(t, r, rng):
        return [*quantize_act(activations(rng, 1, t, 75), fmt.group_size), *roles(packed), bias]

    def oracle(q, s, t, _w, _s, _z, b):
        return silu64(gate_product(q, s, t) + b[0]) * (up_product(q, s, t) + b[1])

    check_op("gated_linear_q", attrs_of(fmt, 37, 75, activation="silu"), build, oracle, "i8")


@pytest.mark.parametrize("fmt", FORMATS, ids=name_of)
def test_embedding(check_op, run_op, fmt):
    packed, w = weight(fmt, 37, 75)
    check_op("embedding", attrs_of(fmt, 37, 75), lambda t, r, rng: [rng.integers(0, 37, (1, t)), *roles(packed)], lambda ids, *_: w[ids])
    for bad in (37, -1):
        with pytest.raises(RequestError, match=f"id {bad} is out of range; allowed: 0 to 36"):
            run_op("embedding", np.array([[0, bad]]), *roles(packed), **attrs_of(fmt, 37, 75))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("fmt", FORMATS, ids=name_of)
def test_grouped_linear(check_op, fmt, shared):
    experts = [weight(fmt, 21, 75, seed=e) for e in range(5)]
    packed = concat_experts(p for p, _ in experts)
    bias = np.linspace(-1, 1, 5 * 21, dtype=np.float32).reshape(5, 21)

    def build(t, r, rng):
        return [activations(rng, t, 1 if shared else 3, 75), rng.integers(0, 6, (t, 3)), *roles(packed), bias]

    def oracle(x, ids, _w, _s, _z, b=None):
        x = np.broadcast_to(x, (len(x), 3, 75))
        y = np.zeros((len(x), 3, 21), np.float32)
        for t, j in np.ndindex(ids.shape):
            if ids[t, j] < 5:
                y[t, j] = exact(x[t, j], experts[ids[t, j]][1]) + (0 if b is None else b[ids[t, j]])
        return y

    attrs = attrs_of(fmt, 21, 75, experts=5)
    check_op("grouped_linear", attrs, build, oracle, "f32_sum")
    check_op("grouped_linear", attrs, lambda t, r, rng: build(t, r, rng)[:5], oracle, "f32_sum")


def test_grouped_linear_refuses_an_unknown_expert(run_op):
    fmt = WeightFormat.of("f32")
    packed, _ = weight(fmt, 4, 8)
    with pytest.raises(RequestError, match="expert 2 is out of range"):
        run_op("grouped_linear", np.zeros((1, 1, 8), np.float32), np.array([[2]]), *roles(packed), **attrs_of(fmt, 4, 8, experts=1))


def test_matmul(check_op):
    check_op(
        "matmul",
        {},
        lambda t, r, rng: [activations(rng, 2, 1, t, 24), activations(rng, 3, 24, 5)],
        lambda a, b: (a.astype(np.float64) @ b).astype(np.float32),
        "f32_sum",
    )


def shapes(fmt, rows=32, columns=64, copies=1):
    layout = packed_layout(fmt, rows, columns, copies)
    return [layout.get(role) for role in ("weight", "scales", "zeros")]


F32, I4, I4A, I8 = WeightFormat.of("f32"), WeightFormat.of("i4", 32), WeightFormat.of("i4", 32, False), WeightFormat.of("i8")
T = Sym("T")
X, Q, QS = (DType.f32, (1, T, 64)), (DType.i8, (1, T, 64)), (DType.f32, (1, T, 2))
Y = (DType.f32, (1, T, 32))


@pytest.mark.parametrize(
    ("op", "inputs", "attrs", "text"),
    [
        ("linear", [X, *shapes(I4A)], attrs_of(F32, 32, 64), "'scales' is given, which does not fit format f32|has no zero points"),
        ("linear", [X, *shapes(I4)[:1]], attrs_of(I4, 32, 64), "'scales' is left out"),
        ("linear", [X, *shapes(I4)], attrs_of(I4, 48, 64), r"'weight' is u8 \[2, 8, 16, 4\]; it must be u8 \[3, 8, 16, 4\]"),
        ("linear", [X, *shapes(I4)], attrs_of(I4, 0, 64), "'rows' is 0"),
        ("linear", [X, *shapes(I4)], {**attrs_of(I4, 32, 64), "group_size": 48}, "group_size 48 is not supported"),
        ("linear", [X, *shapes(I4)], {**attrs_of(I4, 32, 64), "format": "i7"}, "'i7' is not known"),
        ("linear", [X, *shapes(I4)], attrs_of(I4, 32, 64, activation_dtype="f16"), "allowed: f32, bf16"),
        ("linear", [(DType.f32, (T, 32)), *shapes(I4)], attrs_of(I4, 32, 64), "last dim must be 64"),
        ("linear", [X, *shapes(I4), (DType.f32, (31,))], attrs_of(I4, 32, 64), "'bias' is f32"),
        ("linear", [X, *shapes(I4), None, (DType.f32, (T, 32))], attrs_of(I4, 32, 64), "'residual' is f32"),
        ("linear_q", [Q, QS, QS, *shapes(F32)[:1], None], attrs_of(F32, 32, 64), "needs its input 'scales'"),
        ("linear_q", [(DType.i8, (1, T, 32)), QS, QS, *shapes(I4)], attrs_of(I4, 32, 64), "last dim must be 64"),
        ("linear_q", [Q, QS, (DType.f32, (1, T, 1)), *shapes(I4)], attrs_of(I4, 32, 64), "'q_sums' is f32"),
        ("gated_linear", [X, *shapes(I4)], attrs_of(I4, 32, 64, activation="silu"), r"must be u8 \[4, 8, 16, 4\]"),
        ("gated_linear", [X, *shapes(I4, copies=2)], attrs_of(I4, 32, 64, activation="mish"), "'mish' is not known"),
        ("gated_linear", [X, *shapes(I4, copies=2), (DType.f32, (32,))], attrs_of(I4, 32, 64, activation="silu"), r"must be f32 \[2, 32\]"),
        ("embedding", [X, *shapes(F32)], attrs_of(F32, 32, 64), "'ids' is f32"),
        ("grouped_linear", [X, (DType.i64, (T, 2)), *shapes(F32)], attrs_of(F32, 32, 64, experts=1), "'x' has shape"),
        ("grouped_linear", [X, (DType.i64, (T, 2)), *shapes(F32)], attrs_of(F32, 32, 64, experts=0), "'experts' is 0"),
        ("matmul", [(DType.f32, (3, 4)), (DType.f32, (3, 4))], {}, "do not fit"),
        ("matmul", [(DType.f32, (4,)), (DType.f32, (4, 4))], {}, "do not fit"),
    ],
)
def test_wrong_inputs_are_refused(op, inputs, attrs, text):
    with pytest.raises(PlanError, match=text):
        op_spec(op).infer(inputs, attrs, [])
