"""Reductions, ops along an axis, indexing, shape ops and matmul of the CPU device against the references."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mixplan.runtime.errors import RequestError
from mixplan.runtime.plan import Sym

T, R = Sym("T"), Sym("R")
SUM = (1e-5, 2e-5)  # some hundred terms of size 1, in another order


def test_reductions(kit: Any, level: str) -> None:
    x = kit.input(2, T, 37)
    turned = kit.op("permute", x, axes=(2, 0, 1), out=False)
    small = kit.input(3, T, 5, make=lambda s, rng: rng.uniform(0.5, 1.5, s))
    flags, whole = kit.bools(T, 9), kit.ids(50, 4, T, least=-50)
    for op in ("sum", "mean", "amax", "amin"):
        for axes in ((2,), (1,), (0, 2), (0, 1, 2), (0,)):
            kit.op(op, x, axes=axes, tol=SUM)
            kit.op(op, turned, axes=axes, keepdims=True, tol=SUM)
    kit.op("prod", small, axes=(2,), tol=SUM)
    for op in ("any", "all"):
        for axes in ((0,), (1,), (0, 1)):
            kit.op(op, flags, axes=axes)
    for op in ("sum", "prod", "amax", "amin"):
        kit.op(op, whole, axes=(0,))
    kit.check(level, sizes=((1, 1), (7, 3), (65, 65)))


def test_axis_ops(kit: Any, level: str) -> None:
    x = kit.input(2, T, 37)
    turned = kit.op("permute", x, axes=(2, 1, 0), out=False)
    masked = kit.op("where", kit.bools(2, T, 37), x, kit.fill("-inf"), out=False)
    ties = kit.ids(4, 2, T, 19)
    for op in ("softmax", "log_softmax"):
        for value in (x, turned, masked):
            for axis in (0, 1, 2):
                kit.op(op, value, axis=axis, tol=(1e-5, 2e-6))
    for axis in (0, 1, 2):
        kit.op("logsumexp", x, axis=axis, tol=SUM)
        kit.op("logsumexp", masked, axis=axis, keepdims=True, tol=SUM)
        kit.op("cumsum", turned, axis=axis, tol=SUM)
        kit.op("cumsum", ties, axis=axis)
        for op in ("argmax", "argmin"):
            kit.op(op, x, axis=axis)
            kit.op(op, ties, axis=axis, keepdims=True)
        kit.op("sort", x, axis=axis)
        kit.op("sort", ties, axis=axis, descending=True)
    for k in (1, 6, 19):
        kit.op("topk", ties, k=k, axis=2)
        kit.op("topk", ties, k=k, axis=2, largest=False)
    kit.op("topk", turned, k=5, axis=0)
    kit.check(level, sizes=((1, 1), (7, 3), (65, 65)))


def test_indexing(kit: Any, level: str) -> None:
    x = kit.input(11, T, 6)
    turned = kit.op("permute", x, axes=(1, 0, 2), out=False)
    ids = kit.ids(11, T, 3, least=-11)
    narrow = kit.ids(6, 4, dtype="i32")
    kit.op("take", x, ids, axis=0)
    kit.op("take", turned, ids, axis=1)
    kit.op("take", x, narrow, axis=2)
    kit.op("index_nd", x, kit.ids(11, T, 1), kit.ids(1, 2), axis=0)
    kit.op("index_nd", turned, kit.ids(11, 2, 1), kit.ids(6, 3, dtype="i32"), axis=1)
    kit.op("gather", x, kit.ids(11, 4, T, 5), axis=0)
    kit.op("gather", turned, kit.ids(6, T, 11, 2), axis=2)
    kit.op("scatter", x, kit.ids(11, 4, T, 5), kit.input(4, T, 6), axis=0)
    kit.op("scatter", turned, kit.ids(6, T, 11, 9), kit.input(T, 11, 9), axis=2, reduce="add", tol=SUM)
    kit.op("index_add", x, kit.ids(11, 20), kit.input(20, T, 6), axis=0, tol=SUM)
    kit.op("index_add", turned, kit.ids(6, 4), kit.input(T, 11, 4), axis=2, tol=SUM)
    kit.op("take", kit.input(1, T, 13), kit.ids(1, R), axis=1)
    kit.check(level)


@pytest.mark.parametrize("bad", [11, -12, 2**40])
def test_index_out_of_range_is_an_error_and_not_a_read(kit: Any, bad: int) -> None:
    x = kit.input(11, 6)
    ids = kit.input(T, dtype="i64", make=lambda s, rng: np.where(np.arange(s[0]) == s[0] - 1, bad, 0))
    kit.op("take", x, ids, axis=0)
    region = kit.open("portable")
    data = kit.data(7, 1)
    with pytest.raises(RequestError, match=r"Op take \(node 'take_0'\): an index is out of range"):
        region.run(kit.step(7, 1), data)
    data[ids][-1] = 3
    (got,) = region.run(kit.step(7, 1), data).values()
    np.testing.assert_array_equal(got, data[x][data[ids]])
    region.close()


def test_shape_ops(kit: Any, level: str) -> None:
    x = kit.input(1, T, 12)
    flags = kit.bools(T, 5)
    part = kit.op("slice", x, axis=2, start=2, stop=11, step=3)
    kit.op("reshape", kit.op("permute", x, axes=(2, 1, 0), out=False), shape=(Sym("T", 12),))
    kit.op("reshape", part, shape=(Sym("T", 3),))
    kit.op("expand", kit.op("slice", x, axis=2, start=0, stop=1, out=False), shape=(4, T, 7))
    kit.op("cat", x, kit.op("flip", x, axes=(2,), out=False), part, axis=2)
    kit.op("cat", x, kit.fill(3.0, 1, 2, 12), axis=1)
    kit.op("cat", flags, flags, axis=0)
    kit.op("pad", x, pads=(0, 0, 1, 2, 3, 0), value=-1.5)
    kit.op("pad", flags, pads=(1, 0, 0, 1), value=1.0)
    kit.op("pad", kit.ids(9, T), pads=(0, 3), value=7.0)
    kit.op("iota", shape=(2, T, 3), dtype="i64", axis=1)
    square = kit.input(3, 7, 7)
    for diagonal in (-2, 0, 3):
        kit.op("tril", square, diagonal=diagonal)
        kit.op("triu", x, diagonal=diagonal)
    kit.op("tril", kit.fill(True, 5, 5, dtype="bool"), diagonal=0)
    kit.check(level)


def test_matmul(kit: Any, level: str) -> None:
    a, b, plane = kit.input(3, T, 37), kit.input(3, 37, 33), kit.input(37, 5)
    kit.op("matmul", a, b, tol=SUM)
    kit.op("matmul", a, plane, tol=SUM)
    kit.op("matmul", kit.op("permute", b, axes=(0, 2, 1), out=False), kit.op("permute", a, axes=(0, 2, 1), out=False), tol=SUM)
    kit.op("matmul", a, kit.op("permute", a, axes=(0, 2, 1), out=False), tol=SUM)
    kit.op("matmul", kit.input(2, 1, T, 4), kit.input(3, 4, 40), tol=SUM)
    kit.op("matmul", kit.const(np.ones((1, 4, 1), np.float32)), kit.input(1, 1, T), tol=SUM)
    kit.check(level, sizes=((1, 1), (7, 3), (65, 65)))
