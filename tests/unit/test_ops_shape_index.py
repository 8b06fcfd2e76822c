"""Ops that move data or index it, against torch and plain numpy."""

from __future__ import annotations

import numpy as np
import pytest

from mixplan.runtime.dtypes import DType, f32_to_bf16
from mixplan.runtime.errors import PlanError, RequestError
from mixplan.runtime.ops import op_spec
from mixplan.runtime.plan import Sym

torch = pytest.importorskip("torch")
torch.set_num_threads(1)


def cube(t, r, rng):
    return [rng.standard_normal((1, t, 6)).astype(np.float32)]


@pytest.mark.parametrize(
    ("oracle", "build"),
    [
        (lambda x: x.reshape(x.shape[1], 2, 3), cube),
        (lambda x: x.reshape(-1), cube),
        (lambda x: x.reshape(3, x.shape[1], 2), cube),
        (lambda x: x.reshape(x.shape[1], 1, 1, 1, 6), lambda t, r, rng: [f32_to_bf16(cube(t, r, rng)[0])]),
    ],
)
def test_reshape(check_op, build, oracle):
    check_op("reshape", {}, build, oracle)


def test_expand(check_op):
    check_op("expand", {}, lambda t, r, rng: [rng.integers(0, 9, (t, 1))], lambda x: np.broadcast_to(x, (2, len(x), 5)).copy())


def test_permute(check_op):
    check_op("permute", {"axes": (2, 0, 1)}, cube, lambda x: np.moveaxis(x, 2, 0))


@pytest.mark.parametrize(
    ("attrs", "oracle"),
    [
        ({"axis": 2, "start": 1, "stop": 4}, lambda x: x[:, :, 1:4]),
        ({"axis": 2, "start": 0, "stop": 6, "step": 4}, lambda x: x[:, :, ::4]),
        ({"axis": 2, "start": 1, "step": 2}, lambda x: x[:, :, 1::2]),
        ({"axis": 2, "start": 6}, lambda x: x[:, :, 6:]),
        ({"axis": 1, "start": 1}, lambda x: x[:, 1:]),
        ({"axis": 1, "stop": 1}, lambda x: x[:, :1]),
    ],
)
def test_slice(check_op, attrs, oracle):
    check_op("slice", attrs, cube, oracle)


def test_slice_of_a_multiple_of_the_tokens():
    x = (DType.f32, (Sym("T", 4, 2),))
    assert op_spec("slice").infer([x], {"axis": 0, "step": 2}, [])[0][1] == (Sym("T", 2, 1),)
    assert op_spec("slice").infer([x], {"axis": 0, "start": 3, "step": 2}, [])[0][1] == (Sym("T", 2, 0),)


def test_cat(check_op):
    def build(t, r, rng):
        return [rng.standard_normal((t, n)).astype(np.float32) for n in (3, 1, 4)]

    check_op("cat", {"axis": 1}, build, lambda *xs: np.hstack(xs))
    check_op("cat", {"axis": 0}, lambda t, r, rng: cube(t, r, rng) * 3, lambda *xs: np.concatenate(xs))
    x, y = (DType.i64, (Sym("T"), 2)), (DType.i64, (3, 2))
    assert op_spec("cat").infer([x, x, y], {"axis": 0}, [])[0][1] == (Sym("T", 2, 3), 2)


def test_pad(check_op):
    def oracle(x):
        return np.pad(x, ((0, 0), (2, 1), (0, 3)), constant_values=-np.inf)

    check_op("pad", {"pads": (0, 0, 2, 1, 0, 3), "value": "-inf"}, cube, oracle)
    check_op("pad", {"pads": [1, 0], "value": 7}, lambda t, r, rng: [np.arange(t)], lambda x: np.concatenate([[7], x]))
    one = f32_to_bf16(np.ones(1, np.float32))
    check_op("pad", {"pads": (0, 1), "value": 1.0}, lambda t, r, rng: [np.zeros(t, np.uint16)], lambda x: np.concatenate([x, one]))


def test_flip(check_op):
    check_op("flip", {"axes": (1, 2)}, cube, lambda x: x[:, ::-1, ::-1])


@pytest.mark.parametrize("diagonal", [-2, 0, 1])
@pytest.mark.parametrize("op", ["tril", "triu"])
def test_triangles(check_op, op, diagonal):
    def build(t, r, rng):
        return [rng.standard_normal((2, t, t)).astype(np.float32)]

    check_op(op, {"diagonal": diagonal}, build, lambda x: getattr(torch, op)(torch.from_numpy(x), diagonal).numpy())


def test_take(check_op):
    def rows(t, r, rng):
        return [rng.standard_normal((1, t, 6)).astype(np.float32), rng.integers(0, t, r)]

    check_op("take", {"axis": 1}, rows, lambda x, i: x[:, i])
    check_op("take", {"axis": 2}, lambda t, r, rng: [*cube(t, r, rng), np.array([[0, -1], [3, -6]])], lambda x, i: x[:, :, i])


def test_gather(check_op):
    def build(t, r, rng):
        return [rng.standard_normal((3, t, 6)).astype(np.float32), rng.integers(0, 6, (2, t, 4))]

    check_op("gather", {"axis": 2}, build, lambda x, i: torch.gather(torch.from_numpy(x), 2, torch.from_numpy(i)).numpy())


def test_scatter(check_op):
    def build(t, r, rng):
        index = np.argsort(rng.random((t, 6)), axis=1)[:, :4]
        return [rng.standard_normal((t, 6)).astype(np.float32), index, rng.standard_normal((t, 5)).astype(np.float32)]

    def torched(function):
        return lambda x, i, s: function(*(torch.from_numpy(v.copy()) for v in (x, i, s))).numpy()

    check_op("scatter", {"axis": 1}, build, torched(lambda x, i, s: x.scatter(1, i, s)))
    check_op("scatter", {"axis": 1, "reduce": "add"}, build, torched(lambda x, i, s: x.scatter_add(1, i, s)), "f32")


def test_scatter_keeps_the_last_of_several_writes_and_adds_all(run_op):
    x, index, source = np.zeros(3, np.float32), np.array([1, 1, -1]), np.array([1, 2, 3], np.float32)
    np.testing.assert_array_equal(run_op("scatter", x, index, source, axis=0), [0, 2, 3])
    np.testing.assert_array_equal(run_op("scatter", x, index, source, axis=0, reduce="add"), [0, 3, 3])


def test_index_add(check_op):
    def build(t, r, rng):
        return [rng.standard_normal((4, t)).astype(np.float32), np.array([1, 3, 1]), rng.standard_normal((3, t)).astype(np.float32)]

    def oracle(x, i, s):
        return torch.from_numpy(x).index_add(0, torch.from_numpy(i), torch.from_numpy(s)).numpy()

    check_op("index_add", {"axis": 0}, build, oracle, "f32")
    check_op(
        "index_add", {"axis": 1}, lambda t, r, rng: [np.zeros((t, 4), np.int64), np.array([0, 0]), np.ones((t, 2), np.int64)],
        lambda x, i, s: x + np.array([2, 0, 0, 0]),
    )  # fmt: skip


def test_index_nd(check_op):
    def build(t, r, rng):
        return [rng.standard_normal((2, t, 6, 3)).astype(np.float32), rng.integers(-t, t, (t, 1)), rng.integers(0, 6, (1, 4))]

    check_op("index_nd", {"axis": 1}, build, lambda x, i, j: x[:, i, j])
    check_op("index_nd", {"axis": 1}, lambda t, r, rng: build(t, r, rng)[:2], lambda x, i: x[:, i])


def test_iota(check_op):
    # Without inputs the declared shape decides; the oracle knows the step by its first call's order only, so shapes are static here.
    check_op("iota", {"axis": 1}, lambda t, r, rng: [], lambda: np.tile(np.arange(5)[:, None], (2, 1, 3)))
    assert op_spec("iota").infer([], {"axis": 0}, [(DType.i64, (Sym("T"),))]) == ((DType.i64, (Sym("T"),)),)


@pytest.mark.parametrize(("op", "extra"), [("take", ()), ("gather", ()), ("index_nd", ()), ("scatter", (1,)), ("index_add", (1,))])
@pytest.mark.parametrize("bad", [4, -5])
def test_an_index_out_of_range_is_refused(run_op, op, extra, bad):
    with pytest.raises(RequestError, match=f"index {bad} is out of range for a dim of 4"):
        run_op(op, np.zeros(4, np.float32), np.array([0, bad]), *(np.zeros(2, np.float32) for _ in extra), axis=0)


X = (DType.f32, (1, Sym("T"), 8))
I1, I2 = (DType.i64, (Sym("R"),)), (DType.i64, (1, 8))


@pytest.mark.parametrize(
    ("op", "inputs", "attrs", "declared", "text"),
    [
        ("reshape", [X], {}, [(DType.f32, (Sym("T"), 9))], "equally many"),
        ("reshape", [X], {}, [(DType.f32, (Sym("R"), 8))], "equally many"),
        ("reshape", [X], {}, [], "declares 0 outputs"),
        ("expand", [X], {}, [(DType.f32, (1, 8))], "does not broadcast"),
        ("expand", [X], {}, [(DType.f32, (1, Sym("T"), 9))], "do not broadcast"),
        ("permute", [X], {"axes": (0, 1)}, [], "not an order"),
        ("slice", [X], {"axis": 1, "start": 2}, [], "does not lie inside"),
        ("slice", [X], {"axis": 1, "stop": 2}, [], "does not lie inside"),
        ("slice", [X], {"axis": 2, "stop": 9}, [], "does not lie inside"),
        ("slice", [X], {"axis": 2, "start": 5, "stop": 4}, [], "does not lie inside"),
        ("slice", [X], {"axis": 2, "step": 0}, [], "step >= 1"),
        ("slice", [X], {"axis": 2, "start": -1}, [], "start must be >= 0"),
        ("slice", [X], {"axis": 1, "step": 2}, [], "cannot be expressed"),
        ("cat", [], {"axis": 0}, [], "got 0 inputs"),
        ("cat", [X, (DType.i64, X[1])], {"axis": 0}, [], "one dtype"),
        ("cat", [X, (DType.f32, (1, 3, 8))], {"axis": 2}, [], "differ beyond axis 2"),
        ("cat", [(DType.f32, (Sym("T"),)), (DType.f32, (Sym("R"),))], {"axis": 0}, [], "mixes two symbols"),
        ("cat", [X, None], {"axis": 0}, [], "left out"),
        ("pad", [X], {"pads": (1, 1)}, [], "6 counts"),
        ("pad", [X], {"pads": (0, 0, 0, -1, 0, 0)}, [], "counts >= 0"),
        ("pad", [I1], {"pads": (0, 1), "value": 0.5}, [], "does not fit i64"),
        ("flip", [X], {"axes": (3,)}, [], "axis 3"),
        ("tril", [I1], {}, [], "at least 2 dims"),
        ("take", [X, X], {"axis": 0}, [], "'index' is f32"),
        ("gather", [X, I1], {"axis": 1}, [], "does not fit into x"),
        ("gather", [X, (DType.i64, (1, Sym("R"), 8))], {"axis": 2}, [], "does not fit into x"),
        ("scatter", [(DType.f32, (4, 8)), I2, (DType.i64, (1, 8))], {"axis": 0}, [], "'src' is i64"),
        ("scatter", [(DType.f32, (4, 8)), I2, (DType.f32, (1, 7))], {"axis": 0}, [], "does not fit into src"),
        ("scatter", [(DType.f32, (4, 8)), I2, (DType.f32, (1, 8))], {"axis": 0, "reduce": "mul"}, [], "allowed: none, add"),
        ("index_add", [X, I2, X], {"axis": 1}, [], "do not fit"),
        ("index_nd", [X, I1, I1, I1], {"axis": 1}, [], "too many"),
        ("iota", [], {"axis": 1}, [(DType.i64, (4,))], "axis 1"),
    ],
)  # fmt: skip
def test_wrong_inputs_are_refused(op, inputs, attrs, declared, text):
    with pytest.raises(PlanError, match=text):
        op_spec(op).infer(inputs, attrs, declared)
