"""What each layer loses in each candidate format, as `compiler/sensitivity` finds it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from mixplan.compiler.calibration.collect import collect
from mixplan.compiler.calibration.statistics import Calibration, InputStatistics
from mixplan.compiler.frontends.base import Captured
from mixplan.compiler.sensitivity import loss_table
from mixplan.compiler.sensitivity.rows import uses_of
from mixplan.passes.precision.layers import Layer
from mixplan.passes.precision.schemes import Scheme, parse_scheme
from mixplan.runtime.errors import OptionError, UnsupportedError

__all__ = ["SENSITIVITIES", "Sensitivity", "candidate_schemes", "from_gradients", "from_inputs", "wants_gradients", "with_bits"]

SENSITIVITIES = ("auto", "fisher", "hessian", "kld")

_DEFAULT = ("W8A16", "W6A16:g32", "W5A16:g32", "W4A16:g32", "W3A16:g32", "W2A16:g32")
# Larger models are scored without gradients unless these are asked for.
_LARGE = 2_000_000_000
# Tokens that gradients are taken of; changed logits of one layer after another are compared on far fewer.
_TOKENS = {"fisher": 2048, "kld": 512}
_NATS = "nats a token: the divergence of the model's predictions, as predicted"
_RELATIVE = "noise power over signal power of the layer's output"


@dataclass(frozen=True)
class Sensitivity:
    """`loss[layer][scheme]`: larger is worse; `bits[layer][scheme]`: effective bits. method and unit say what the loss is.

    additive: losses of several layers add up, so that a layer of more weights has more; else they are relative to the layer's output.
    """

    method: str = "hessian"
    unit: str = _RELATIVE
    additive: bool = False
    note: str = ""
    schemes: tuple[str, ...] = ()
    loss: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    bits: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Group:
    """A layer alone."""

    name: str
    layers: tuple[str, ...]


def candidate_schemes(texts: Sequence[str] | None) -> tuple[Scheme, ...]:
    """The schemes named, narrowest last, by default one for each width. OptionError for what is none, and where none rounds weights."""
    schemes = [parse_scheme(text) for text in (_DEFAULT if texts is None else texts)]
    unique = {str(scheme): scheme for scheme in schemes if scheme.weight.quantized}
    if not unique:
        raise OptionError("No candidate scheme rounds weights, so there is no sensitivity to tell.", hint="Name some, such as W4A16,W8A16.")
    return tuple(sorted(unique.values(), key=lambda scheme: -scheme.weight.effective_bits(1024, 1024)))


def wants_gradients(method: str, parameters: int) -> bool:
    """Whether the method needs more than the inputs' second moments. OptionError for a method that is not known."""
    if method not in SENSITIVITIES:
        raise OptionError(f"Sensitivity method {method!r} is not known; allowed: {', '.join(SENSITIVITIES)}.")
    return method in ("fisher", "kld") or (method == "auto" and parameters <= _LARGE)


def from_gradients(
    captured: Captured, schemes: Sequence[Scheme], windows: Tensor, method: str, threads: int | None, progress: Callable[[float], None]
) -> tuple[Sensitivity | None, str]:
    """Of the graph as captured, before it is rewritten. Where method is "auto" and gradients cannot be had, None and the reason."""
    chosen = "fisher" if method == "auto" else method
    length = int(windows.shape[1])
    some = windows[: max(_TOKENS[chosen] // length, 1)]
    inputs = collect(captured, some, hessians=False, threads=threads, progress=lambda done: progress(done / 4))
    try:
        return _table(captured, schemes, inputs, chosen, some, lambda done: progress((1 + 3 * done) / 4)), ""
    except UnsupportedError as error:
        if method != "auto":
            raise
        return None, error.message


def from_inputs(
    captured: Captured,
    schemes: Sequence[Scheme],
    squares: Mapping[str, tuple[Tensor, int]],
    progress: Callable[[float], None],
    note: str = "",
) -> Sensitivity:
    """From the second moments of the layers' inputs alone; the graph may be rewritten. note: why it is not the other."""
    moments = {layer: InputStatistics((total / rows).float(), tokens=rows) for layer, (total, rows) in squares.items()}
    found = _table(captured, schemes, Calibration(moments), "hessian", (), progress)
    return Sensitivity(found.method, found.unit, found.additive, note, found.schemes, found.loss)


def with_bits(found: Sensitivity, layers: Sequence[Layer], schemes: Sequence[Scheme]) -> Sensitivity:
    """With the effective bits of each layer, in the layers' order."""
    sizes = {layer.name: layer for layer in layers}
    bits = {
        name: {str(scheme): scheme.weight.effective_bits(sizes[name].rows, sizes[name].columns) for scheme in schemes}
        for name in found.loss
        if name in sizes
    }
    loss = {layer.name: found.loss[layer.name] for layer in layers if layer.name in found.loss}
    return Sensitivity(found.method, found.unit, found.additive, found.note, found.schemes, loss, bits)


def _table(
    captured: Captured,
    schemes: Sequence[Scheme],
    inputs: Calibration,
    method: str,
    windows: Tensor | tuple[()],
    progress: Callable[[float], None],
) -> Sensitivity:
    groups = [_Group(layer, (layer,)) for layer in uses_of(captured)]
    table = loss_table(captured, groups, schemes, calibration=inputs, windows=windows, method=method, compensate=False, progress=progress)
    loss: dict[str, dict[str, float]] = {}
    for (layer, scheme), value in table.loss.items():
        loss.setdefault(layer, {})[scheme] = value if math.isfinite(value) else math.inf
    additive = method != "hessian"
    return Sensitivity(method, _NATS if additive else _RELATIVE, additive, "", tuple(map(str, schemes)), loss)
