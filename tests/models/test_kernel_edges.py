"""Kernels at the edges of what they may be: results that are inputs, arguments of the wrong kind, results that are no tensors."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import mixplan
from mixplan.passes.base import PassContext
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


def _ones(x: Tensor) -> Tensor:
    return torch.ones(3, 5)


def _scattered(x: Tensor) -> Tensor:
    return torch.zeros_like(x).scatter(1, torch.zeros(3, 1, dtype=torch.long), 2.0)


def _skipping(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return x - z


@pytest.mark.parametrize("function", [_ones, _scattered, _skipping])
@pytest.mark.parametrize("target", ["cpu", "npu", "reference"])
def test_tensors_may_be_unused(target: str, function: Callable[..., Tensor]) -> None:
    """One of them, or all: what is left then is a region without inputs."""
    kernel = mixplan.kernel(target=target, dtype="bf16" if target == "cpu" else "f32")(function)
    given = [np.full((3, 5), number, np.float32) for number in (4, 2, 1)[: len(kernel.signature.tensors)]]
    wanted = function(*map(torch.from_numpy, given)).numpy()
    np.testing.assert_array_equal(kernel(*given), wanted)
    np.testing.assert_array_equal(kernel.reference(*given), wanted)


@pytest.mark.parametrize("target", ["cpu", "npu", "reference"])
def test_results_without_dims_have_none(target: str) -> None:
    @mixplan.kernel(target=target)
    def total(x: Tensor) -> Tensor:
        return x.sum() * 2

    for given, dtype in ((np.float32(1.5), "bf16"), (X, "f32")):
        found = total.on(dtype=dtype)(given)
        assert isinstance(found, np.ndarray) and found.shape == ()
        np.testing.assert_allclose(found, given.sum() * 2, rtol=1e-5)


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


@pytest.mark.parametrize("given", [3, "bf16", torch.sin, nn.SiLU(), np.sin, softmax])
def test_what_is_no_function_is_told(given: Any) -> None:
    for make in (mixplan.kernel, mixplan.kernel(dtype="bf16")):
        with pytest.raises(OptionError, match="must be a function written in Python"):
            make(given)


@pytest.mark.parametrize("given", ["silu", 3, torch.ops.aten.silu, nn.functional.silu, nn.SiLU])
def test_what_is_no_op_is_not_replaced(given: Any) -> None:
    """The last three are callable, but no graph holds calls of them."""
    with pytest.raises(OptionError, match=r"(?i)^Kernel softmax cannot replace .*(silu|3).*\n.*such as torch\.ops\.aten\.silu\.default"):
        softmax.replacing(torch.ops.aten.silu.default, given)


def test_shapes_that_do_not_fit_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Alone and in a model, without torch's log of the same, which elsewhere goes on."""

    @mixplan.kernel
    def added(x: Tensor, y: Tensor) -> Tensor:
        return (x + y) * 2

    mode, graph = FakeTensorMode(), fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    call = graph.call_function(torch.ops.aten.silu.default, (x,))
    graph.output(call)
    for node, columns in ((x, 3), (y, 4), (call, 3)):
        node.meta["val"] = mode.from_tensor(torch.ones(2, columns))
    replacing = added.replacing(torch.ops.aten.silu.default, match=lambda node: (x, y))
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    logger.addHandler(caplog.handler)
    try:
        with pytest.raises(UnsupportedError, match=r"test_kernel_edges.py:\d+ \(added\).* length 4 at -1"):
            added(X[:, :3], X[:, :4])
        with pytest.raises(UnsupportedError, match="Kernel added in the place of node silu"):
            replacing(fx.GraphModule({}, graph), PassContext())
        assert not any(record.levelno >= logging.WARNING for record in caplog.records)
        with mode, pytest.raises(RuntimeError):
            torch.ones(2, 3) + torch.ones(2, 4)
        assert any("failed while attempting to run meta" in record.message for record in caplog.records)
    finally:
        logger.removeHandler(caplog.handler)


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
