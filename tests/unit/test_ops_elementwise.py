"""Elementwise ops against torch: ordinary values, extremes, broadcasting, dtypes."""

from __future__ import annotations

import numpy as np
import pytest

from mixplan.runtime.dtypes import DType, f32_to_bf16
from mixplan.runtime.errors import PlanError
from mixplan.runtime.ops import op_spec
from mixplan.runtime.ops.activations import ACTIVATIONS, erf

torch = pytest.importorskip("torch")
torch.set_num_threads(1)
F = torch.nn.functional

SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 90.0, -90.0, 1e-8, -1e-8, np.inf, -np.inf, np.nan], np.float32)
INT_DTYPES = (np.int64, np.int32, np.int16, np.int8)


def floats(t, r, rng):
    return [np.concatenate([np.resize(SPECIAL, (t, 16)), 3 * rng.standard_normal((t, 21)).astype(np.float32)], axis=1)]


def tame(t, r, rng):
    return [rng.standard_normal((1, t, 37)).astype(np.float32) * 4]


def bools(t, r, rng):
    return [rng.random((t, 5)) < 0.5]


def integers(dtype):
    return lambda t, r, rng: [rng.integers(-90, 90, (t, 5)).astype(dtype)]


def as_torch(function):
    return lambda *xs: function(*(torch.from_numpy(x.copy()) for x in xs)).numpy()


UNARY = {
    "neg": torch.neg,
    "abs": torch.abs,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "log": torch.log,
    "log1p": torch.log1p,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": torch.relu,
    "erf": torch.erf,
    "sin": torch.sin,
    "cos": torch.cos,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round": torch.round,
    "sign": torch.sign,
    "log_sigmoid": F.logsigmoid,
    "logical_not": torch.logical_not,
    "square": torch.square,
    "isnan": torch.isnan,
    "isinf": torch.isinf,
    "softplus": F.softplus,
}
EXACT = {"neg", "abs", "relu", "floor", "ceil", "round", "sign", "logical_not", "square", "isnan", "isinf"}
# nan where torch's own kernels give -0, 0 or nan depending on the vector width: x * f(x) at minus infinity.
UNSTABLE_AT_INFINITY = {"silu", "gelu", "gelu_tanh", "sign"}


@pytest.mark.parametrize("op", UNARY)
def test_unary_on_f32(check_op, op):
    tolerance = "exact" if op in EXACT else "f32"
    check_op(op, {}, tame, as_torch(UNARY[op]), tolerance)
    if op not in UNSTABLE_AT_INFINITY:
        check_op(op, {}, floats, as_torch(UNARY[op]), tolerance)


@pytest.mark.parametrize("dtype", INT_DTYPES)
@pytest.mark.parametrize("op", ["neg", "abs", "relu", "sign", "square", "logical_not"])
def test_unary_on_integers(check_op, op, dtype):
    check_op(op, {}, integers(dtype), as_torch(UNARY[op]))


def test_bitwise_not(check_op):
    check_op("bitwise_not", {}, bools, as_torch(torch.bitwise_not))
    check_op("bitwise_not", {}, integers(np.int32), as_torch(torch.bitwise_not))


def test_softplus_attributes(check_op):
    check_op("softplus", {"beta": 2.0, "threshold": 3.0}, floats, as_torch(lambda x: F.softplus(x, 2.0, 3.0)), "f32")


def test_erf_is_accurate_everywhere():
    import math

    x = np.concatenate([np.linspace(-7, 7, 20001), [1e-30, -1e-30, 0.0]]).astype(np.float32)
    exact = np.array([math.erf(v) for v in x.tolist()])
    assert np.abs(erf(x) - exact).max() < 1e-7
    assert np.isnan(erf(np.array([np.nan], np.float32))).all()
    np.testing.assert_array_equal(erf(np.array([np.inf, -np.inf], np.float32)), [1, -1])


def test_activations_of_a_gated_linear_match_torch():
    x = np.linspace(-9, 9, 101, dtype=np.float32)
    wanted = {name: UNARY[name] for name in ("silu", "gelu", "gelu_tanh", "relu", "sigmoid", "tanh")}
    wanted["relu2"] = lambda v: torch.relu(v) ** 2
    assert wanted.keys() == ACTIVATIONS.keys()
    for name, function in wanted.items():
        np.testing.assert_allclose(ACTIVATIONS[name](x), as_torch(function)(x), rtol=1e-6, atol=1e-6)


def pair(shape_a, shape_b, draw):
    """Builds two inputs; "T" and "R" in a shape stand for those sizes."""

    def build(t, r, rng):
        sizes = {"T": t, "R": r}
        return [np.asarray(draw(rng, tuple(sizes.get(n, n) for n in shape))) for shape in (shape_a, shape_b)]

    return build


SHAPES = [(("T", 5), ("T", 5)), ((1, "T", 3), ("T", 1)), (("T",), ()), ((4, 1, "R"), (2, "R")), ((1,), ("T", 2, 1))]


def draw_floats(rng, shape):
    return np.float32(3) * rng.standard_normal(shape, np.float32)


def draw_steps(rng, shape):
    """Small half-integers, so that comparisons meet equal values and divisions meet 0."""
    return np.asarray(rng.integers(-4, 5, shape) / 2, np.float32)


BINARY = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "floor_div": torch.floor_divide,
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "atan2": torch.atan2,
    "pow": torch.pow,
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
}


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("op", BINARY)
def test_binary_on_f32(check_op, op, shapes):
    for draw in (draw_floats, draw_steps):
        check_op(op, {}, pair(*shapes, draw), as_torch(BINARY[op]), "f32" if op in ("atan2", "pow", "remainder") else "exact")


@pytest.mark.parametrize("dtype", INT_DTYPES)
@pytest.mark.parametrize(
    "op", ["add", "sub", "mul", "maximum", "minimum", "floor_div", "remainder", "fmod", "pow", "eq", "lt", "logical_and"]
)
def test_binary_on_integers(check_op, op, dtype):
    low = 0 if op == "pow" else 1

    def build(t, r, rng):
        return [
            rng.integers(-9, 9, (t, 6)).astype(dtype),
            (rng.integers(low, 4, (t, 6)) * rng.choice([1, -1 if low else 1], (t, 6))).astype(dtype),
        ]

    check_op(op, {}, build, as_torch(BINARY[op]))


def test_integer_corner_cases(run_op):
    a = np.array([7, -7, 0, 1, -1, -1, 2], np.int64)
    zero = np.zeros_like(a)
    for op in ("floor_div", "remainder", "fmod"):
        np.testing.assert_array_equal(run_op(op, a, zero), zero)
    np.testing.assert_array_equal(run_op("pow", a, np.array([-1, -1, 1, -3, -3, -2, -1])), [0, 0, 0, 1, -1, 1, 0])


@pytest.mark.parametrize("op", ["bitwise_and", "bitwise_or", "bitwise_xor"])
def test_bitwise(check_op, op):
    check_op(op, {}, pair(("T", 4), ("T", 1), lambda rng, shape: rng.integers(-99, 99, shape)), as_torch(getattr(torch, op)))
    check_op(op, {}, pair(("T", 4), ("T", 1), lambda rng, shape: rng.random(shape) < 0.5), as_torch(getattr(torch, op)))


def test_shifts(check_op, run_op):
    def build(t, r, rng):
        return [rng.integers(-99, 99, (t, 4)).astype(np.int32), rng.integers(0, 32, (t, 4)).astype(np.int32)]

    check_op("shift_left", {}, build, as_torch(torch.bitwise_left_shift))
    check_op("shift_right", {}, build, as_torch(torch.bitwise_right_shift))
    a, by = np.array([5, -5, 5, -5], np.int32), np.array([32, 40, -1, -1], np.int32)
    np.testing.assert_array_equal(run_op("shift_left", a, by), [0, 0, 0, 0])
    np.testing.assert_array_equal(run_op("shift_right", a, by), [0, -1, 0, -1])


def test_where(check_op):
    def build(t, r, rng):
        return [rng.random((t, 1)) < 0.5, rng.standard_normal((1, 7)).astype(np.float32), np.array(-np.inf, np.float32)]

    check_op("where", {}, build, as_torch(torch.where))


TORCH_DTYPES = {"f32": torch.float32, "f16": torch.float16, "i64": torch.int64, "i32": torch.int32, "i8": torch.int8, "bool": torch.bool}


@pytest.mark.parametrize("target", TORCH_DTYPES)
@pytest.mark.parametrize("source", TORCH_DTYPES)
def test_cast(check_op, source, target):
    def build(t, r, rng):
        return [(rng.integers(-400, 400, (t, 9)) / 8).astype(DType(source).numpy)]

    check_op("cast", {}, build, as_torch(lambda x: x.to(TORCH_DTYPES[target])))


def test_cast_to_and_from_bf16(check_op):
    def build(t, r, rng):
        return [rng.standard_normal((t, 9)).astype(np.float32)]

    check_op("cast", {}, build, as_torch(lambda x: x.to(torch.bfloat16).view(torch.uint16)))
    check_op("cast", {}, lambda t, r, rng: [f32_to_bf16(build(t, r, rng)[0])], as_torch(lambda x: x.view(torch.bfloat16).to(torch.float32)))


F32, I64, BOOL, F16 = ((d, (1, 4)) for d in (DType.f32, DType.i64, DType.bool, DType.f16))


@pytest.mark.parametrize(
    ("op", "inputs", "text"),
    [
        ("add", [F32, I64], "one dtype"),
        ("add", [BOOL, BOOL], "allowed: f32, i64"),
        ("add", [F32, (DType.f32, (3,))], "do not broadcast"),
        ("div", [I64, I64], "allowed: f32"),
        ("exp", [F16], "allowed: f32"),
        ("neg", [BOOL], "is bool"),
        ("where", [F32, F32, F32], "allowed: bool"),
        ("where", [BOOL, F32, I64], "one dtype"),
        ("cast", [F32], "takes its output"),
        ("shift_left", [F32, F32], "is f32"),
    ],
)
def test_wrong_inputs_are_refused(op, inputs, text):
    with pytest.raises(PlanError, match=text):
        op_spec(op).infer(inputs, {}, [])
