"""Norms, activation quantization and rotary embedding against torch and plain numpy."""

from __future__ import annotations

import numpy as np
import pytest

from mixplan.runtime.dtypes import DType
from mixplan.runtime.errors import PlanError
from mixplan.runtime.ops import op_spec
from mixplan.runtime.plan import Sym

torch = pytest.importorskip("torch")
torch.set_num_threads(1)
F = torch.nn.functional

WIDTH = 75


def norm_inputs(count):
    def build(t, r, rng):
        x = (rng.standard_normal((1, t, WIDTH)) * 3 + 1).astype(np.float32)
        return [x, *(rng.standard_normal(WIDTH).astype(np.float32) for _ in range(count))]

    return build


def as_torch(function):
    return lambda *xs: function(*(torch.from_numpy(x.copy()) for x in xs)).numpy()


def rms_norm(x, weight=None):
    return F.rms_norm(x, (WIDTH,), weight, 1e-5)


def layer_norm(x, weight=None, bias=None):
    return F.layer_norm(x, (WIDTH,), weight, bias, 1e-5)


@pytest.mark.parametrize("count", [0, 1])
def test_rms_norm(check_op, count):
    check_op("rms_norm", {"eps": 1e-5}, norm_inputs(count), as_torch(rms_norm), "f32_sum")


@pytest.mark.parametrize("count", [0, 1, 2])
def test_layer_norm(check_op, count):
    check_op("layer_norm", {"eps": 1e-5}, norm_inputs(count), as_torch(layer_norm), "f32_sum")


def test_layer_norm_with_a_bias_but_no_weight(run_op):
    x, bias = norm_inputs(1)(3, 1, np.random.default_rng(0))
    y = run_op("layer_norm", x, None, bias, eps=1e-5)
    np.testing.assert_allclose(y, as_torch(layer_norm)(x) + bias, rtol=1e-5, atol=1e-5)


def quantized(x, group):
    """The definition, one group at a time."""
    width = -(-x.shape[-1] // (group or 32)) * (group or 32)
    group = group or width
    padded = np.zeros((*x.shape[:-1], width), np.float32)
    padded[..., : x.shape[-1]] = x
    q = np.zeros(padded.shape, np.int8)
    scales = np.ones((*x.shape[:-1], width // group), np.float32)
    sums = np.zeros_like(scales)
    for at in np.ndindex(scales.shape):
        part = slice(at[-1] * group, (at[-1] + 1) * group)
        values = padded[at[:-1]][part]
        largest = np.abs(values).max()
        if largest >= 2.0**-100:
            scales[at] = largest / np.float32(127)
        q[at[:-1]][part] = np.clip(np.rint(values * (np.float32(1) / scales[at])), -127, 127)
        sums[at] = scales[at] * q[at[:-1]][part].astype(np.int32).sum()
    return q, scales, sums


@pytest.mark.parametrize("group", [0, 32, 64, 128])
def test_quantize_act(check_op, group):
    def build(t, r, rng):
        x = rng.standard_normal((1, t, 200)).astype(np.float32) * rng.choice([0, 1e-30, 1, 1e30], (1, t, 1)).astype(np.float32)
        x[..., ::7] = 0
        return [x]

    check_op("quantize_act", {"group": group}, build, lambda x: quantized(x, group), "f32")


def test_quantize_act_of_halves_zeros_and_what_is_not_finite(run_op):
    q, scales, sums = run_op("quantize_act", np.array([[127, 0.5, 1.5, -2.5, -126.6]], np.float32), group=32)
    np.testing.assert_array_equal(q[0, :5], [127, 0, 2, -2, -127])
    assert scales.tolist() == [[1.0]] and sums.tolist() == [[0.0]]
    q, scales, sums = run_op("quantize_act", np.zeros((1, 3), np.float32), group=0)
    assert not q.any() and scales.tolist() == [[1.0]] and sums.tolist() == [[0.0]]
    run_op("quantize_act", np.array([[np.inf, np.nan, 1.0]], np.float32), group=0)


@pytest.mark.parametrize("group", [0, 32])
def test_norms_with_quantization(check_op, run_op, group):
    check_op(
        "rms_norm_quant",
        {"eps": 1e-5, "group": group},
        norm_inputs(1),
        lambda *xs: quantized(run_op("rms_norm", *xs, eps=1e-5), group),
        "f32",
    )
    check_op(
        "layer_norm_quant",
        {"eps": 1e-5, "group": group},
        norm_inputs(2),
        lambda *xs: quantized(run_op("layer_norm", *xs, eps=1e-5), group),
        "f32",
    )


def rope_inputs(rotated):
    def build(t, r, rng):
        return [rng.standard_normal(shape).astype(np.float32) for shape in ((1, t, 3, 12), (1, t, rotated), (1, t, rotated))]

    return build


@pytest.mark.parametrize("rotated", [12, 8])
def test_rope_half(check_op, rotated):
    def oracle(x, cos, sin):
        head, rest = x[..., :rotated], x[..., rotated:]
        turned = np.concatenate([-head[..., rotated // 2 :], head[..., : rotated // 2]], -1)
        return np.concatenate([head * cos[:, :, None] + turned * sin[:, :, None], rest], -1)

    check_op("rope", {"style": "half"}, rope_inputs(rotated), oracle)


@pytest.mark.parametrize("rotated", [12, 8])
def test_rope_interleaved(check_op, rotated):
    def oracle(x, cos, sin):
        out = x.copy()
        for i in range(0, rotated, 2):
            a, b = x[..., i], x[..., i + 1]
            out[..., i] = a * cos[:, :, None, i] - b * sin[:, :, None, i]
            out[..., i + 1] = b * cos[:, :, None, i + 1] + a * sin[:, :, None, i + 1]
        return out

    check_op("rope", {"style": "interleaved"}, rope_inputs(rotated), oracle, "f32")


T = Sym("T")
X = (DType.f32, (1, T, 64))
HEADS = (DType.f32, (1, T, 4, 16))


def angles(size):
    return (DType.f32, (1, T, size))


@pytest.mark.parametrize(
    ("op", "inputs", "attrs", "text"),
    [
        ("rms_norm", [X], {}, "needs the attribute 'eps'"),
        ("rms_norm", [X], {"eps": -1.0}, "eps is -1.0"),
        ("rms_norm", [X, (DType.f32, (63,))], {"eps": 1e-5}, "'weight' is f32"),
        ("rms_norm", [(DType.f32, (1, T))], {"eps": 1e-5}, "last dim of fixed size"),
        ("layer_norm", [X, None, (DType.f32, (1,))], {"eps": 1e-5}, "'bias' is f32"),
        ("rms_norm_quant", [X], {"eps": 1e-5, "group": 16}, "group is 16"),
        ("quantize_act", [(DType.i64, (1, 4))], {}, "allowed: f32"),
        ("quantize_act", [(DType.f32, (4, T))], {}, "last dim"),
        ("rope", [HEADS, angles(16), angles(8)], {"style": "half"}, "do not fit x"),
        ("rope", [HEADS, angles(18), angles(18)], {"style": "half"}, "at most 16"),
        ("rope", [HEADS, angles(7), angles(7)], {"style": "half"}, "even last dim"),
        ("rope", [X, angles(16), angles(16)], {"style": "half"}, "must have 4 dims"),
        ("rope", [HEADS, angles(16), angles(16)], {"style": "neox"}, "allowed: half, interleaved"),
    ],
)
def test_wrong_inputs_are_refused(op, inputs, attrs, text):
    with pytest.raises(PlanError, match=text):
        op_spec(op).infer(inputs, attrs, [])
