"""By what to divide the input of layers so that rounding costs their outputs least: a search over a few families of numbers.

Column j's number is size(x_j)^a over size(w_j)^b, sizes being root mean squares of the input and the largest magnitudes of the weights.
Tried are b = 0 and b = 1 - a. "awq" counts the error of rounding weights (Lin and others, 2023), "smooth" the error of rounding inputs to
int8 as well, where layers do that (after Xiao and others, 2022, whose numbers have b = 1 - a). A family's numbers are tried on some rows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor, fx

from mixplan.compiler.calibration.statistics import InputStatistics
from mixplan.compiler.constants import Call, Constants, Expr, Literal, Parameter
from mixplan.compiler.quantize import dequantized
from mixplan.compiler.tuning import one_torch_thread
from mixplan.passes.base import ScaledLayers
from mixplan.passes.precision.schemes import Scheme
from mixplan.passes.rewriting import tensor_of

__all__ = ["SCALINGS", "InputScaler"]

SCALINGS = ("none", "awq", "smooth")

_POWERS = (0.2, 0.35, 0.5, 0.65, 0.8, 1.0)
_ROWS, _RUN = 128, 16
# Numbers this far from the middle are enough, and scales in f16 and bf16 hold what they make of a weight.
_MOST = 64.0
# An error has to become so much less: the rows are a sample.
_GAIN = 0.99


@dataclass(frozen=True)
class _Sample:
    """Some rows f32 [n, K] of a weight, and how many each stands for."""

    rows: Tensor
    scheme: Scheme
    weight: float


class InputScaler:
    """A `Scaler` for the passes. constants: with what is known of the inputs of weights, Hessians if possible."""

    def __init__(self, constants: Constants, kind: str) -> None:
        self._constants = constants
        self._kind = kind

    def __call__(self, layers: ScaledLayers) -> Tensor | None:
        """The numbers f32 [K], None where none are better than 1, or nothing is known of the input."""
        if not any(scheme.weight.quantized for scheme in layers.schemes):
            return None
        expressions = [_expression(layers.graph, weight) for weight in layers.weights]
        known = self._constants.inputs(expressions[0])
        if known is None or not bool(torch.isfinite(known.moments).all() and known.moments.any()):
            return None
        samples = [self._sample(expr, scheme) for expr, scheme in zip(expressions, layers.schemes, strict=True)]
        self._constants.forget()
        tried = list(self._tried(samples, known.moments, layers.shared))
        # One thread for each, so that the number of cores cannot change a plan.
        with one_torch_thread(), ThreadPoolExecutor(min(os.cpu_count() or 1, len(tried) + 1)) as pool:
            plain, *losses = pool.map(lambda scales: self._loss(samples, known, scales), [None, *tried])
        best = min(range(len(tried)), key=losses.__getitem__)
        return tried[best] if losses[best] < _GAIN * plain else None

    def _sample(self, expr: Expr, scheme: Scheme) -> _Sample:
        count = expr.shape[0]
        starts = range(0, count, _RUN) if count <= _ROWS else [i * count // (_ROWS // _RUN) for i in range(_ROWS // _RUN)]
        rows = torch.cat([self._constants.rows(expr, at, min(at + _RUN, count)).float() for at in starts])
        return _Sample(rows, scheme, count / len(rows))

    def _tried(self, samples: list[_Sample], moments: Tensor, shared: Tensor | None) -> Iterator[Tensor]:
        heaviest = torch.stack([sample.rows.abs().amax(0) for sample in samples]).amax(0)
        if shared is not None:
            moments, heaviest = _pooled(moments, shared, "mean"), _pooled(heaviest, shared, "amax")
        size = moments.clamp(min=1e-8 * float(moments.mean())).sqrt()
        heaviest = heaviest.clamp(min=1e-4 * float(heaviest.max()) + 1e-30)
        for power in _POWERS:
            for other in {0.0: None, 1.0 - power: None}:
                logs = power * size.log() - other * heaviest.log()
                yield (logs - logs.mean()).exp().clamp(1 / _MOST, _MOST)

    def _loss(self, samples: list[_Sample], known: InputStatistics, scales: Tensor | None) -> float:
        inputs = known.without_hessians() if scales is None else known.without_hessians().divided(scales)
        total = 0.0
        for sample in samples:
            rows = sample.rows if scales is None else sample.rows * scales
            held = dequantized(sample.scheme.weight, rows, "weight", inputs, compensate=False)
            # The error that the input as it was would meet.
            loss = known.loss(held - rows if scales is None else (held - rows) / scales)
            if self._kind == "smooth" and sample.scheme.activation == "i8":
                loss = loss + _input_loss(held, inputs, sample.scheme.group)
            total += float(loss.sum()) * sample.weight
        return total


def _input_loss(rows: Tensor, inputs: InputStatistics, group: int) -> Tensor:
    """The mean square error of each row's output [n] that rounding the input causes."""
    errors = inputs.rounding[group]
    size = group or rows.shape[1]
    each = errors.repeat_interleave(size)[: rows.shape[1]]
    # A column that is hardly there loses no more than itself.
    return rows.square() @ torch.minimum(each, inputs.moments)


def _pooled(values: Tensor, shared: Tensor, how: str) -> Tensor:
    """For each column the mean or the largest of those that have its number."""
    pooled = torch.zeros(int(shared.max()) + 1).scatter_reduce(0, shared, values, how, include_self=False)
    return pooled[shared]


def _expression(graph: fx.GraphModule, node: fx.Node) -> Expr:
    """A constant of the graph."""
    value = node.meta["val"]
    if node.op == "get_attr":
        tensor = tensor_of(graph, str(node.target))
        return Parameter(str(node.target), tuple(tensor.shape)) if tensor.device.type == "meta" else Literal(tensor, str(node.target))
    args = fx.map_arg(node.args, lambda source: _expression(graph, source))
    kwargs = fx.map_arg(node.kwargs, lambda source: _expression(graph, source))
    return Call(node.target, tuple(args), dict(kwargs), tuple(value.shape), value.dtype)
