"""The table of losses: every group of layers under every candidate scheme."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

import torch
from torch import Tensor

from mixplan.compiler.calibration.statistics import Calibration, InputStatistics
from mixplan.compiler.frontends.base import Captured
from mixplan.compiler.quantize import dequantized
from mixplan.compiler.sensitivity.attention_rounding import AttentionLoss
from mixplan.compiler.sensitivity.gradients import GradientStatistics, gradient_statistics
from mixplan.compiler.sensitivity.rows import Use, WeightRows, uses_of
from mixplan.compiler.tuning import one_torch_thread
from mixplan.passes.precision.schemes import Scheme
from mixplan.runtime.errors import OptionError, UnsupportedError
from mixplan.runtime.formats import WeightFormat

__all__ = ["METHODS", "Group", "LossTable", "loss_table"]

METHODS = ("fisher", "hessian", "kld")

# The mean square error of a number in e4m3, as a part of its square: steps of an eighth, (1/8)^2 / 12, of mantissas in [1, 2) whose
# logarithm is even, of mean square 3 / (2 ln 2).
_FLOAT_NOISE = 6.0e-4


class Group(Protocol):
    """Layers that share a decision."""

    @property
    def name(self) -> str: ...

    @property
    def layers(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class LossTable:
    """loss: by (group's name, scheme's spelling), additive over groups. tokens: that gradients were taken of (0: none). seconds it took.

    tables: what the columns of each lookup table count for, where gradients tell (for rounding its rows). attention: what rounding keys,
    values and queries costs, by attention layer, where gradients tell.
    """

    loss: dict[tuple[str, str], float]
    method: str
    tokens: int
    seconds: float
    tables: dict[str, InputStatistics] = field(default_factory=dict)
    attention: dict[int, AttentionLoss] = field(default_factory=dict)


def loss_table(
    captured: Captured,
    groups: Sequence[Group],
    schemes: Sequence[Scheme],
    *,
    calibration: Calibration,
    windows: Tensor | Sequence[Sequence[int]] = (),
    method: str = "fisher",
    compensate: bool = True,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> LossTable:
    """Predicted loss of every group under every scheme, of `captured.graph` as it was captured.

    windows: token ids [W, L] that gradients are taken of (fisher) or that logits are compared on (kld); hessian needs none. compensate: the
    plan's weights are quantized with error compensation where `calibration` has Hessians. OptionError for a method that is not known.
    """
    if method not in METHODS:
        raise OptionError(f"Sensitivity method {method!r} is not known; allowed: {', '.join(METHODS)}.")
    started = perf_counter()
    tell = progress or (lambda _: None)
    if method == "kld":
        from mixplan.compiler.sensitivity.divergence import divergence_table

        loss, tokens = divergence_table(captured, groups, schemes, calibration, windows, tell)
        return LossTable(loss, method, tokens, perf_counter() - started)
    gradients = GradientStatistics()
    if method == "fisher":
        gradients = _gradients(captured, windows, seed, lambda done: tell(done / 2))
    uses = uses_of(captured)
    loss = {(group.name, str(scheme)): 0.0 for group in groups for scheme in schemes}
    given = gradients if method == "fisher" else None
    jobs = [(group, layer, use) for group in groups for layer in group.layers for use in uses.get(layer, ())]
    # A layer on each core: torch's own threads would only get in each other's way on work of this size.
    with one_torch_thread(), ThreadPoolExecutor(min(os.cpu_count() or 1, 8)) as pool:
        scored = pool.map(lambda job: _layer(captured, job[1], job[2], schemes, calibration, given, compensate), jobs)
        for index, ((group, _, _), found) in enumerate(zip(jobs, scored, strict=True)):
            for scheme, value in found.items():
                loss[group.name, scheme] += value
            done = (index + 1) / len(jobs)
            tell((1 + done) / 2 if method == "fisher" else done)
    tables = {layer: known for layer in gradients.tables if (known := _table_columns(layer, gradients)) is not None}
    return LossTable(loss, method, gradients.tokens, perf_counter() - started, tables, gradients.attention)


def _gradients(
    captured: Captured, windows: Tensor | Sequence[Sequence[int]], seed: int, progress: Callable[[float], None]
) -> GradientStatistics:
    try:
        return gradient_statistics(captured, windows, seed=seed, progress=progress)
    except (RuntimeError, NotImplementedError) as error:  # what autograd raises for operators without gradients
        raise UnsupportedError(
            f"Gradients of this model could not be computed: {error}", hint="Use sensitivity 'hessian', which needs none."
        ) from error


def _layer(
    captured: Captured,
    layer: str,
    use: Use,
    schemes: Sequence[Scheme],
    calibration: Calibration,
    gradients: GradientStatistics | None,
    compensate: bool,
) -> dict[str, float]:
    """Loss by scheme of one use of a layer's weight."""
    rows = WeightRows(captured, use)
    inputs = _table_columns(layer, gradients) if use.table else calibration.inputs.get(layer)
    if inputs is not None and len(inputs.moments) != rows.values.shape[1]:
        inputs = None
    score = _table_score(rows, layer, gradients) if use.table else _product_score(rows, layer, inputs, gradients)
    errors: dict[WeightFormat, float] = {}
    found: dict[str, float] = {}
    for scheme in schemes:
        fmt = scheme.weight
        if fmt not in errors:
            errors[fmt] = score(dequantized(fmt, rows.values, layer, inputs, compensate=compensate) - rows.values)
        rounding = _rounding(rows, layer, scheme, inputs, gradients) if scheme.activation in ("i8", "e4m3") and not use.table else 0.0
        found[str(scheme)] = errors[fmt] + rounding
    return found


def _table_columns(layer: str, gradients: GradientStatistics | None) -> InputStatistics | None:
    """What the columns of a lookup table count for: its rows are rounded by that."""
    columns = None if gradients is None else gradients.tables.get(layer)
    return None if columns is None or not bool(columns.sum() > 0) else InputStatistics(columns)


def _table_score(rows: WeightRows, layer: str, gradients: GradientStatistics | None) -> Callable[[Tensor], float]:
    if gradients is None:
        power = float(rows.values.square().sum()) or 1.0
        return lambda error: float(error.square().sum()) / power
    columns = gradients.tables.get(layer)
    if columns is None:
        return lambda _: 0.0
    return lambda error: 0.5 * float((columns * error.square().mean(0)).sum())


def _product_score(
    rows: WeightRows, layer: str, inputs: InputStatistics | None, gradients: GradientStatistics | None
) -> Callable[[Tensor], float]:
    inputs = inputs or InputStatistics(torch.ones(rows.values.shape[1]))
    if gradients is None:
        power = float(inputs.loss(rows.values).sum()) or 1.0
        return lambda error: float(inputs.loss(error).sum()) / power
    counts, share = _outputs(rows, layer, gradients)
    return lambda error: 0.5 * share * float((counts * inputs.loss(error)).sum())


def _outputs(rows: WeightRows, layer: str, gradients: GradientStatistics) -> tuple[Tensor, float]:
    """What the outputs of the sampled rows count, [n], and by how much all outputs count more than these."""
    outputs = gradients.outputs.get(layer)
    if outputs is None:
        return torch.zeros(len(rows.places)), 0.0
    counts = outputs[rows.places % len(outputs)]
    sampled, total = float(counts.sum()), float(outputs.sum())
    return (counts, total / sampled) if sampled > 0 else (counts, 0.0)


def _rounding(rows: WeightRows, layer: str, scheme: Scheme, inputs: InputStatistics | None, gradients: GradientStatistics | None) -> float:
    """Loss from rounding the input: independent errors of known mean square, through the weights."""
    if inputs is None or (scheme.activation == "i8" and scheme.group not in inputs.rounding):
        return 0.0
    if scheme.activation == "e4m3":
        noise = inputs.moments * _FLOAT_NOISE
    else:
        group = scheme.group or rows.values.shape[1]
        noise = inputs.rounding[scheme.group].repeat_interleave(group)[: rows.values.shape[1]]
        # What is far below a step is rounded to nothing: no more than itself is lost.
        noise = torch.minimum(noise, inputs.moments)
    each = rows.values.square() @ noise
    if gradients is None:
        return float(each.sum()) / (float(inputs.loss(rows.values).sum()) or 1.0)
    counts, share = _outputs(rows, layer, gradients)
    return 0.5 * share * float((counts * each).sum())
