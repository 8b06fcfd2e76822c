"""The KL divergence of the logits with one group of layers changed: nothing assumed, one run for each entry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mixplan.compiler.calibration.statistics import Calibration
from mixplan.compiler.frontends.base import Captured
from mixplan.compiler.quantize import dequantized
from mixplan.compiler.sensitivity.rows import Use, uses_of
from mixplan.compiler.streaming import Observer, stream
from mixplan.compiler.weights.base import WeightSource
from mixplan.passes.precision.layers import layer_name
from mixplan.passes.precision.schemes import Scheme
from mixplan.runtime.formats import WeightFormat

if TYPE_CHECKING:
    from mixplan.compiler.sensitivity.table import Group

__all__ = ["divergence_table"]


def divergence_table(
    captured: Captured,
    groups: Sequence[Group],
    schemes: Sequence[Scheme],
    calibration: Calibration,
    windows: Tensor | Sequence[Sequence[int]],
    tell: Callable[[float], None],
) -> tuple[dict[tuple[str, str], float], int]:
    """Mean KL divergence in nats by (group, scheme), and the number of tokens. Activations stay as they are: int8 ones are not simulated,
    so schemes that differ in these alone get one value."""
    uses = uses_of(captured)
    formats = list(dict.fromkeys(scheme.weight for scheme in schemes))
    reference = _Logits()
    report = stream(captured.graph, captured.weights, windows, reference)
    loss: dict[tuple[str, str], float] = {}
    for index, group in enumerate(groups):
        for number, fmt in enumerate(formats):
            changed = _Changed(captured.weights, {layer: uses[layer][0] for layer in group.layers if layer in uses}, fmt, calibration)
            compared = _Compared(reference.found)
            stream(captured.graph, changed, windows, compared)
            value = compared.total / max(report.tokens, 1)
            loss.update({(group.name, str(scheme)): value for scheme in schemes if scheme.weight == fmt})
            tell((index + (number + 1) / len(formats)) / len(groups))
    return loss, report.tokens


class _Logits(Observer):
    """Log probabilities f32 [n, V] of each batch."""

    def __init__(self) -> None:
        self.found: dict[tuple[int, ...], Tensor] = {}

    def on_logits(self, windows: Sequence[int], logits: Tensor) -> None:
        self.found[tuple(windows)] = torch.log_softmax(logits, -1)


class _Compared(Observer):
    def __init__(self, reference: dict[tuple[int, ...], Tensor]) -> None:
        self.total = 0.0
        self._reference = reference

    def on_logits(self, windows: Sequence[int], logits: Tensor) -> None:
        before = self._reference[tuple(windows)]
        self.total += float((before.exp() * (before - torch.log_softmax(logits, -1))).sum())


class _Changed:
    """A weight source in which some layers are rounded. The weight last asked for is kept."""

    def __init__(self, source: WeightSource, layers: dict[str, Use], fmt: WeightFormat, calibration: Calibration) -> None:
        self._source, self._layers, self._fmt, self._calibration = source, layers, fmt, calibration
        self._last: tuple[str, NDArray[np.float32]] | None = None

    def names(self) -> list[str]:
        return self._source.names()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._source.shape(name)

    def dtype(self, name: str) -> str:
        return self._source.dtype(name)

    def read(self, name: str) -> NDArray[np.float32]:
        layer = layer_name(name)
        use = self._layers.get(layer)
        if use is None or not name.endswith("weight"):
            return self._source.read(name)
        if self._last is None or self._last[0] != name:
            whole = torch.from_numpy(self._source.read(name).copy())
            matrix = whole if use.rows_first else whole.transpose(-1, -2)
            inputs = None if use.table else self._calibration.inputs.get(layer)
            rounded = dequantized(self._fmt, matrix.reshape(-1, matrix.shape[-1]).contiguous(), layer, inputs).reshape(matrix.shape)
            self._last = (name, (rounded if use.rows_first else rounded.transpose(-1, -2)).contiguous().numpy())
        return self._last[1]

    def read_rows(self, name: str, start: int, stop: int) -> NDArray[np.float32]:
        return self._source.read_rows(name, start, stop) if layer_name(name) not in self._layers else self.read(name)[start:stop]

    def close(self) -> None:
        pass
