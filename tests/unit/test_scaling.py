"""Scaled inputs: what is known of them, and which numbers are chosen."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, fx

from mixplan.compiler.calibration.collect import _Sums
from mixplan.compiler.calibration.statistics import InputStatistics
from mixplan.compiler.constants import Call, Constants, Literal, Parameter
from mixplan.compiler.quantize import dequantized
from mixplan.compiler.scaling import InputScaler
from mixplan.passes.base import ScaledLayers
from mixplan.passes.precision.schemes import parse_scheme

A = torch.ops.aten
_ROWS, _COLUMNS = 96, 64


def _statistics(x: Tensor, block: int = _COLUMNS) -> InputStatistics:
    sums = _Sums(x.shape[1], block)
    sums.add(x)
    return sums.finish()


def _input(outliers: int, size: float = 30.0, seed: int = 0) -> Tensor:
    x = torch.randn(512, _COLUMNS, generator=torch.Generator().manual_seed(seed))
    x[:, :outliers] *= size
    return x


class _Weights:
    def __init__(self, weight: Tensor) -> None:
        self._weight = weight

    def read(self, name: str) -> Any:
        return self._weight.numpy()

    def read_rows(self, name: str, start: int, stop: int) -> Any:
        return self._weight[start:stop].numpy()


def _asked(weight: Tensor, scheme: str, shared: Tensor | None = None) -> ScaledLayers:
    """One layer, as the passes ask about it."""
    graph = fx.Graph()
    node = graph.get_attr("w")
    node.meta["val"] = weight.to("meta")
    graph.output(node)
    root = torch.nn.Module()
    root.register_buffer("w", weight.to("meta"))
    return ScaledLayers(fx.GraphModule(root, graph), (node,), (parse_scheme(scheme),), shared)


def _scales(x: Tensor, weight: Tensor, scheme: str, kind: str = "awq", shared: Tensor | None = None) -> Tensor | None:
    constants = Constants(_Weights(weight), {"w": _statistics(x)})  # type: ignore[arg-type]
    return InputScaler(constants, kind)(_asked(weight, scheme, shared))


@pytest.mark.parametrize("block", [_COLUMNS, 16])
def test_statistics_of_a_divided_input(block: int) -> None:
    x, by = _input(3), 2.0 ** torch.linspace(-3, 3, _COLUMNS)
    found, expected = _statistics(x, block).divided(by), _statistics(x / by, block)
    torch.testing.assert_close(found.moments, expected.moments)
    for a, b in zip(found.blocks, expected.blocks, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    for group in (0, 32):
        # The largest column is known by its moment, not by how often it is the largest.
        ratio = found.rounding[group] / expected.rounding[group]
        assert bool(((ratio > 0.25) & (ratio < 4)).all())


@pytest.mark.parametrize("block", [_COLUMNS, 16])
def test_factors_of_a_divided_input(block: int) -> None:
    # Damped before the division, then exactly the inverse's factor.
    known, by = _statistics(_input(3), block), 2.0 ** torch.linspace(-3, 3, _COLUMNS)
    for index, factor in enumerate(known.divided(by).factors()):
        part = by[index * block : (index + 1) * block]
        damped = known.blocks[index] + 0.01 * known.blocks[index].diagonal().mean() * torch.eye(len(part))
        inverse = torch.linalg.inv((damped / (part[:, None] * part)).double()).float()
        assert torch.equal(factor, factor.triu())
        torch.testing.assert_close(factor.T @ factor, inverse, rtol=1e-3, atol=1e-4 * float(inverse.abs().max()))


def test_what_is_known_of_scaled_weights() -> None:
    known = _statistics(_input(3))
    constants = Constants(None, {"a": known, "b": known})
    columns, rows = Literal(torch.rand(_COLUMNS) + 0.5), Literal(torch.rand(_ROWS, 1) + 0.5)
    scaled = [Call(A.mul.Tensor, (Parameter(name, (_ROWS, _COLUMNS)), columns), {}, (_ROWS, _COLUMNS), torch.float32) for name in "ab"]
    found = constants.inputs(scaled[0])
    assert found is not None and constants.inputs(scaled[1]) is found, "layers on one input share one record, and its factors"
    torch.testing.assert_close(found.moments, known.moments / columns.tensor.square())
    turned = Call(A.mul.Tensor, (scaled[0], rows), {}, (_ROWS, _COLUMNS), torch.float32)
    assert constants.inputs(turned) is found
    part = Call(A.slice.Tensor, (turned, 0, 8, 40), {}, (32, _COLUMNS), torch.float32)
    assert constants.inputs(part) is found
    merged = Call(A.cat.default, (scaled, 0), {}, (2 * _ROWS, _COLUMNS), torch.float32)
    assert constants.inputs(merged) is found
    computed = Call(A.mul.Tensor, (scaled[0], Literal(torch.rand(_ROWS, _COLUMNS))), {}, (_ROWS, _COLUMNS), torch.float32)
    assert constants.inputs(computed) is None


@pytest.mark.parametrize(("scheme", "share"), [("W4A16:g32", 0.7), ("W3A16:g32,nl,s8", 0.95)])
def test_columns_that_matter_are_rounded_less(scheme: str, share: float) -> None:
    x, weight = _input(3), torch.randn(_ROWS, _COLUMNS, generator=torch.Generator().manual_seed(1))
    scales = _scales(x, weight, scheme)
    assert scales is not None and bool((scales[:3] > 1.4 * scales[3:].mean()).all())
    fmt, known = parse_scheme(scheme).weight, _statistics(x)

    def error(by: Tensor) -> float:
        held = dequantized(fmt, weight * by, "w", known.divided(by), compensate=False) / by
        return float(((x @ (held - weight).T) ** 2).mean())

    assert error(scales) < share * error(torch.ones(_COLUMNS))


def test_what_is_not_rounded_is_left_alone() -> None:
    weight = torch.randn(_ROWS, _COLUMNS, generator=torch.Generator().manual_seed(1))
    assert _scales(_input(3), weight, "FP32") is None


def test_nothing_is_known() -> None:
    weight = torch.randn(_ROWS, _COLUMNS)
    assert InputScaler(Constants(_Weights(weight), {}), "awq")(_asked(weight, "W4A16:g32")) is None  # type: ignore[arg-type]


def test_shared_columns_have_one_number() -> None:
    shared = torch.arange(_COLUMNS).reshape(4, 16).remainder(32).reshape(-1)
    weight = torch.randn(_ROWS, _COLUMNS, generator=torch.Generator().manual_seed(1))
    scales = _scales(_input(3), weight, "W4A16:g32", shared=shared)
    assert scales is not None
    for number in range(32):
        assert len(set(scales[shared == number].tolist())) == 1


def test_smoothing_takes_outliers_from_int8_inputs() -> None:
    # Groups of 32 round all inputs by the largest: dividing it takes error from 31 others, at the weights' cost.
    x, weight = _input(2, 100.0), torch.randn(_ROWS, _COLUMNS, generator=torch.Generator().manual_seed(1))
    scales = _scales(x, weight, "W8A8:g32", "smooth")
    assert scales is not None and bool((scales[:2] > 4 * scales[2:].mean()).all())
