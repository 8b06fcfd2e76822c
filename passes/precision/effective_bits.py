"""Bits per weight, scales and zero points counted in: per layer, per scheme, and over the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mixplan.passes.decision import LayerDecision

__all__ = ["EffectiveBits", "LayerSize", "effective_bits", "layer_bits"]


@dataclass(frozen=True)
class LayerSize:
    """Output rows and input columns of a layer's weight."""

    rows: int
    columns: int

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return self.rows * self.columns


@dataclass(frozen=True)
class EffectiveBits:
    """`by_scheme` maps a scheme's spelling to (parameters, bits per weight); `total` is over all layers; `parameters` counts them."""

    by_scheme: dict[str, tuple[int, float]]
    total: float
    parameters: int


def layer_bits(decision: LayerDecision, size: LayerSize) -> float:
    """Bits per weight of one layer."""
    return decision.scheme.weight.effective_bits(size.rows, size.columns)


def effective_bits(decisions: Mapping[str, LayerDecision], sizes: Mapping[str, LayerSize]) -> EffectiveBits:
    """Over all decided layers. Norm weights and biases, which are no layers, are not counted."""
    bits: dict[str, int] = {}
    counts: dict[str, int] = {}
    for name, decision in decisions.items():
        size, scheme = sizes[name], str(decision.scheme)
        bits[scheme] = bits.get(scheme, 0) + decision.scheme.weight.total_bits(size.rows, size.columns)
        counts[scheme] = counts.get(scheme, 0) + size.parameters
    parameters = sum(counts.values())
    return EffectiveBits(
        {scheme: (counts[scheme], bits[scheme] / counts[scheme]) for scheme in sorted(bits)},
        sum(bits.values()) / parameters if parameters else 0.0,
        parameters,
    )
