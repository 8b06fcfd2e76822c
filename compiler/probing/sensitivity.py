"""What each layer loses in each candidate format, by the error in its output alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from mixplan.compiler.quantize import quantize_rows
from mixplan.compiler.streaming.constants import load_constants
from mixplan.compiler.weights.base import WeightSource
from mixplan.passes.precision.layers import Layer, weight_of
from mixplan.passes.precision.schemes import Scheme, parse_scheme
from mixplan.runtime.errors import OptionError
from mixplan.runtime.packing import dequantize

__all__ = ["Sensitivity", "candidate_schemes", "output_errors"]

_DEFAULT = ("W8A16", "W6A16:g32", "W5A16:g32", "W4A16:g32", "W3A16:g32", "W2A16:g32")
# Rows of each weight that are rounded, evenly spread.
_ROWS = 256
# Matrices of a stack of experts that they are taken of.
_MATRICES = 8


@dataclass(frozen=True)
class Sensitivity:
    """`loss[layer][scheme]`: larger is worse; `bits[layer][scheme]`: effective bits. method says what the loss is, unit in what."""

    method: str = "output error"
    unit: str = "noise power / signal power of the layer's output"
    schemes: tuple[str, ...] = ()
    loss: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    bits: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def candidate_schemes(texts: Sequence[str] | None) -> tuple[Scheme, ...]:
    """The schemes named, narrowest last; by default those of the usual menu that there are. OptionError for others and for none."""
    if texts is not None:
        schemes = [parse_scheme(text) for text in texts]
    else:
        schemes = []
        for text in _DEFAULT:
            try:
                schemes.append(parse_scheme(text))
            except OptionError:
                continue
    if not schemes or not any(scheme.weight.quantized for scheme in schemes):
        raise OptionError("No candidate scheme rounds weights, so there is no sensitivity to tell.", hint="Name some, such as W4A16,W8A16.")
    unique = {str(scheme): scheme for scheme in schemes if scheme.weight.quantized}
    return tuple(sorted(unique.values(), key=lambda scheme: -scheme.weight.effective_bits(1024, 1024)))


def output_errors(
    module: fx.GraphModule,
    weights: WeightSource,
    layers: Sequence[Layer],
    squares: Mapping[str, tuple[Tensor, int]],
    schemes: Sequence[Scheme],
    progress: Callable[[float], None] | None = None,
) -> Sensitivity:
    """sum_k E[x_k^2] (w - w')^2 over sum_k E[x_k^2] w^2, over up to 256 of a layer's rows: the part of its output that becomes noise, if
    input columns are uncorrelated. Of layers without a product (lookups) every column counts the same."""
    loss: dict[str, dict[str, float]] = {}
    bits: dict[str, dict[str, float]] = {}
    with torch.no_grad():
        for index, layer in enumerate(layers):
            if layer.parameter:
                rows = _sample(module, weights, layer)
                importance = _importance(squares.get(layer.name), rows.shape[1])
                loss[layer.name] = {str(scheme): _error(scheme, rows, importance, layer.name) for scheme in schemes}
                bits[layer.name] = {str(scheme): scheme.weight.effective_bits(layer.rows, layer.columns) for scheme in schemes}
            if progress is not None:
                progress((index + 1) / len(layers))
    return Sensitivity(schemes=tuple(map(str, schemes)), loss=loss, bits=bits)


def _importance(found: tuple[Tensor, int] | None, columns: int) -> Tensor:
    if found is None or found[0].numel() != columns or float(found[0].sum()) <= 0:
        return torch.ones(columns)
    return (found[0] / found[1]).float()


def _error(scheme: Scheme, rows: Tensor, importance: Tensor, name: str) -> float:
    made = quantize_rows(scheme.weight, rows, name, importance)
    back = torch.from_numpy(dequantize(scheme.weight, made))[:, : rows.shape[1]]
    noise = float(((back - rows).square() * importance).sum(dtype=torch.float64))
    signal = float((rows.square() * importance).sum(dtype=torch.float64))
    return noise / signal if signal > 0 else 0.0 if noise == 0 else math.inf


def _sample(module: fx.GraphModule, weights: WeightSource, layer: Layer) -> Tensor:
    """Rows [n, K] of a layer's weight, evenly spread. Weights that the graph computes from others are computed whole."""
    expression = weight_of(layer.nodes[0])
    if expression.op != "get_attr":
        whole = load_constants(module, weights, (expression,))[expression]
        flat = whole.reshape(-1, whole.shape[-1])
        return flat[_spread(flat.shape[0], _ROWS)].contiguous()
    name = str(expression.target)
    shape = weights.shape(name)
    if len(shape) == 2:
        return torch.cat([_tensor(weights.read_rows(name, i, i + 1)) for i in _spread(shape[0], _ROWS)])
    some = _spread(shape[0], _MATRICES)
    return torch.cat([_tensor(weights.read_rows(name, i, i + 1))[0][_spread(shape[1], _ROWS // len(some))] for i in some])


def _spread(count: int, wanted: int) -> list[int]:
    """Up to `wanted` of `count` indices, the first and the last among them."""
    return sorted({round(i) for i in torch.linspace(0, count - 1, min(wanted, count)).tolist()})


def _tensor(array: Any) -> Tensor:
    return torch.from_numpy(array if array.flags.writeable else array.copy()).float()
