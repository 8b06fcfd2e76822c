"""Reductions, softmax and sorting against torch."""

from __future__ import annotations

import numpy as np
import pytest

from mixplan.runtime.dtypes import DType
from mixplan.runtime.errors import PlanError
from mixplan.runtime.ops import op_spec
from mixplan.runtime.plan import Sym

torch = pytest.importorskip("torch")
torch.set_num_threads(1)


def floats(t, r, rng):
    return [rng.standard_normal((2, t, 37)).astype(np.float32)]


def integers(t, r, rng):
    return [rng.integers(-9, 9, (2, t, 5))]


def bytes_(t, r, rng):
    return [rng.integers(-9, 9, (2, t, 5)).astype(np.int8)]


def bools(t, r, rng):
    return [rng.random((2, t, 5)) < 0.8]


def as_torch(function):
    def oracle(*xs):
        out = function(*(torch.from_numpy(x.copy()) for x in xs))
        return [y.numpy() for y in out] if isinstance(out, tuple) else out.numpy()

    return oracle


REDUCTIONS = {
    "sum": (torch.sum, floats, "f32_sum"),
    "mean": (torch.mean, floats, "f32"),
    "amax": (torch.amax, floats, "exact"),
    "amin": (torch.amin, floats, "exact"),
}


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axes", [(2,), (0, 2), (1,), (0, 1, 2)])
@pytest.mark.parametrize("op", REDUCTIONS)
def test_reductions(check_op, op, axes, keepdims):
    function, build, tolerance = REDUCTIONS[op]
    check_op(op, {"axes": axes, "keepdims": keepdims}, build, as_torch(lambda x: function(x, axes, keepdim=keepdims)), tolerance)


@pytest.mark.parametrize("op", ["any", "all"])
def test_any_and_all(check_op, op):
    check_op(op, {"axes": (0, 2)}, bools, as_torch(lambda x: getattr(torch, op)(x, (0, 2))))


def test_prod(check_op):
    check_op("prod", {"axes": (2,)}, floats, as_torch(lambda x: x.prod(2)), "f32")
    check_op("prod", {"axes": (2,), "keepdims": True}, integers, as_torch(lambda x: x.prod(2, keepdim=True)))


@pytest.mark.parametrize("build", [integers, bytes_])
def test_integer_reductions_keep_the_dtype(check_op, build):
    check_op("sum", {"axes": (2, 0)}, build, lambda x: x.sum((0, 2), dtype=x.dtype))
    check_op("amax", {"axes": (1,)}, build, as_torch(lambda x: x.amax(1)))


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("build", [floats, integers])
@pytest.mark.parametrize("op", ["argmax", "argmin"])
def test_argmax_takes_the_lowest_index(check_op, op, build, keepdims):
    def oracle(x):
        best = x.max(2, keepdims=True) if op == "argmax" else x.min(2, keepdims=True)
        found = np.array([[row.tolist().index(True) for row in page] for page in x == best])
        return found[..., None] if keepdims else found

    check_op(op, {"axis": 2, "keepdims": keepdims}, build, oracle)


def with_infinities(t, r, rng):
    x = rng.standard_normal((2, t, 37)).astype(np.float32) * 30
    x[:, :, ::3] = -np.inf
    return [x]


@pytest.mark.parametrize("build", [floats, with_infinities])
@pytest.mark.parametrize("axis", [1, 2])
def test_softmax(check_op, build, axis):
    check_op("softmax", {"axis": axis}, build, as_torch(lambda x: x.softmax(axis)), "f32")
    if build is floats or axis == 2:
        check_op("log_softmax", {"axis": axis}, build, as_torch(lambda x: x.log_softmax(axis)), "f32")
    for keepdims in (False, True):
        check_op("logsumexp", {"axis": axis, "keepdims": keepdims}, build, as_torch(lambda x, k=keepdims: x.logsumexp(axis, k)), "f32")


def test_logsumexp_of_infinities(run_op):
    x = np.array([[-np.inf, -np.inf], [np.inf, 1.0]], np.float32)
    np.testing.assert_array_equal(run_op("logsumexp", x, axis=1), [-np.inf, np.inf])


def test_cumsum(check_op):
    check_op("cumsum", {"axis": 1}, floats, as_torch(lambda x: x.cumsum(1)), "f32_sum")
    check_op("cumsum", {"axis": 2}, integers, as_torch(lambda x: x.cumsum(2)))
    check_op("cumsum", {"axis": 2}, bytes_, lambda x: x.cumsum(2, dtype=np.int8))


def stable_order(x, axis, descending):
    """Sorting by (value, index) with Python's own sort."""
    rows = np.moveaxis(x, axis, -1)
    order = np.empty(rows.shape, np.int64)
    for at in np.ndindex(rows.shape[:-1]):
        row = rows[at].tolist()
        order[at] = sorted(range(len(row)), key=lambda i: (-row[i] if descending else row[i], i))
    return np.moveaxis(order, -1, axis)


@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("build", [floats, integers])
@pytest.mark.parametrize("descending", [False, True])
def test_sort_is_stable(check_op, build, axis, descending):
    def oracle(x):
        order = stable_order(x, axis, descending)
        return np.take_along_axis(x, order, axis), order

    check_op("sort", {"axis": axis, "descending": descending}, build, oracle)


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("build", [floats, integers])
def test_topk_puts_the_lowest_index_of_equals_first(check_op, build, largest):
    def oracle(x):
        order = stable_order(x, 2, largest)[..., :4]
        return np.take_along_axis(x, order, 2), order

    check_op("topk", {"axis": 2, "k": 4, "largest": largest}, build, oracle)


def test_extreme_integers_sort_descending(run_op):
    x = np.array([np.iinfo(np.int64).min, 5, np.iinfo(np.int64).max, 5])
    values, indices = run_op("sort", x, axis=0, descending=True)
    np.testing.assert_array_equal(indices, [2, 1, 3, 0])
    np.testing.assert_array_equal(values, x[[2, 1, 3, 0]])


X = (DType.f32, (1, Sym("T"), 8))


@pytest.mark.parametrize(
    ("op", "inputs", "attrs", "text"),
    [
        ("sum", [X], {"axes": ()}, "at least one"),
        ("sum", [X], {"axes": (1, 1)}, "none twice"),
        ("sum", [X], {"axes": (-1,)}, "axis -1 is out of range"),
        ("mean", [(DType.i64, (3,))], {"axes": (0,)}, "allowed: f32"),
        ("amax", [(DType.f32, (Sym("R"),))], {"axes": (0,)}, "may be empty"),
        ("argmax", [(DType.f32, (0,))], {"axis": 0}, "may be empty"),
        ("any", [X], {"axes": (0,)}, "allowed: bool"),
        ("softmax", [X], {"axis": 3}, "allowed: 0 to 2"),
        ("topk", [X], {"axis": 2, "k": 9}, "k is 9"),
        ("topk", [X], {"axis": 1, "k": 2}, "k is 2"),
        ("topk", [X], {"axis": 2, "k": 2, "largest": 1}, "must be bool"),
        ("sort", [(DType.bool, (4,))], {"axis": 0}, "is bool"),
        ("cumsum", [X], {}, "needs the attribute 'axis'"),
    ],
)
def test_wrong_inputs_are_refused(op, inputs, attrs, text):
    with pytest.raises(PlanError, match=text):
        op_spec(op).infer(inputs, attrs, [])
