"""Kernels at the edges of what they may be: results that are inputs, arguments of the wrong kind, results that are no tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import mixplan
from mixplan.runtime.errors import OptionError, RequestError, UnsupportedError

X = np.random.default_rng(0).standard_normal((3, 5), np.float32)


@mixplan.kernel
def several(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    product = x * y
    return product, x, product, torch.ones(2), y


@mixplan.kernel
def softmax(x: Tensor) -> Tensor:
    return x.softmax(-1)


@mixplan.kernel
def shifted(x: Tensor) -> Tensor:
    return x.tanh().sum() + x


@pytest.mark.parametrize("target", ["cpu", "npu", "reference"])
def test_results_may_be_inputs_constants_or_the_same(target: str) -> None:
    found = several.on(target)(X, X + 1)
    for got, expected in zip(found, (X * (X + 1), X, X * (X + 1), np.ones(2, np.float32), X + 1), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_numbers_and_views_are_arrays_too() -> None:
    np.testing.assert_allclose(shifted(np.float32(3)), np.tanh(np.float32(3)) + 3, atol=1e-6)
    np.testing.assert_allclose(softmax(X.T[::2]), torch.from_numpy(X.T[::2].copy()).softmax(-1).numpy(), atol=1e-6)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([1.0, 2.0], r"given list \[1.0, 2.0\]; all of its tensors must be numpy arrays, or all torch"),
        ("abc", "given str 'abc'"),
        (X[:0], r"an array of shape \[0, 5\], which is empty"),
        (None, "given NoneType None"),
    ],
)
def test_what_is_no_array_is_told(given: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        softmax(given)
    with pytest.raises(OptionError, match="all of its tensors"):
        several(X, torch.ones(5))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: None, "returns None"),
        (lambda x: {"a": x}, r"returns \{'a': x\}"),
        (lambda x: (x, 3.0), "returns 3.0"),
        (lambda x: (), r"returns \(\)"),
    ],
)
def test_a_result_that_is_no_tensor_is_told(function: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        mixplan.kernel(function)


def test_a_softmax_of_a_number_is_told() -> None:
    with pytest.raises(UnsupportedError, match="softmax of a tensor without dims"):
        softmax(np.float32(1))


@pytest.mark.parametrize("target", ["cpu", "npu", "reference"])
def test_an_index_out_of_range_is_told(target: str) -> None:
    @mixplan.kernel(target=target)
    def rows(table: Tensor, indices: Tensor) -> Tensor:
        return table[indices]

    with pytest.raises(RequestError, match="out of"):
        rows(X, np.array([1, 3]))
