"""The plan's record of each layer's format, and the bits that all of it costs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mixplan.compiler.constants import Expr, Parameter, leaves
from mixplan.compiler.lowering import Lowered
from mixplan.compiler.lowering.builder import Source
from mixplan.passes.decision import LayerDecision
from mixplan.passes.precision.schemes import Scheme
from mixplan.runtime.formats import WeightFormat
from mixplan.runtime.plan import Decision

__all__ = ["Bits", "layer_name", "make_decisions", "scheme_text"]


@dataclass(frozen=True)
class Bits:
    """Bits per stored parameter: what the options ask for (scheme and overrides), and what is stored. All constants count.

    stored: bits of all constants together. parameters: how many of the checkpoint's numbers they hold.
    """

    requested: float
    achieved: float
    stored: float
    parameters: int


def layer_name(parameter: str) -> str:
    """The layer that a parameter belongs to: its name without `.weight`."""
    return parameter.removesuffix(".weight")


def scheme_text(fmt: WeightFormat) -> str:
    """A name for a format that no precision pass decided on."""
    if not fmt.quantized:
        return {32: "FP32", 16: "BF16"}[fmt.bits]
    return str(Scheme(f"W{fmt.bits}A16", fmt, "f32"))


def make_decisions(
    lowered: Lowered, decided: Mapping[str, LayerDecision], tied: Mapping[str, str], requested: Scheme
) -> tuple[tuple[Decision, ...], Bits]:
    """One record for each weight and format in which it is stored, and the bits over the whole model.

    `tied` maps other names of a parameter to the one that is stored.
    """
    records: dict[tuple[str, str], Decision] = {}
    stored = wanted = 0.0
    names = {layer_name(other): layer_name(name) for other, name in tied.items()}
    by_layer = {**decided, **{names.get(layer, layer): d for layer, d in decided.items() if names.get(layer, layer) not in decided}}
    seen: set[str] = set()
    for index, source in lowered.sources.items():
        if source.expr is not None:
            value = lowered.values[index]
            bits = 8.0 * value.dtype.itemsize * math.prod(d for d in value.shape if isinstance(d, int))
            stored += bits
            wanted += bits
            continue
        weight = source.packed
        if weight is None or weight.key in seen:
            continue
        seen.add(weight.key)
        total = float(weight.format.total_bits(weight.rows, weight.columns)) * weight.copies
        stored += total
        elements = weight.rows * weight.columns * weight.copies
        parameters = list(dict.fromkeys(_parameters(weight.pieces)))
        # What the options ask of this weight: the scheme, or the override that was decided for it.
        asked = next((by_layer[n].scheme for n in (layer_name(p.name) for p in parameters) if n in by_layer), requested)
        wanted += asked.weight.effective_bits(weight.rows, weight.columns) * elements
        for parameter in parameters:
            layer = layer_name(parameter.name)
            decision = by_layer.get(layer)
            scheme = str(decision.scheme) if decision and decision.scheme.weight == weight.format else scheme_text(weight.format)
            records[layer, scheme] = Decision(
                layer=layer,
                scheme=scheme,
                rule=decision.rule if decision else "default",
                parameters=parameter.numel,
                bits=total / elements,
                requested=str(decision.scheme if decision else requested),
                reason=decision.reason if decision else "",
            )
    sizes = {p.name: p.numel for source in lowered.sources.values() for p in _parameters(_expressions(source))}
    count = max(sum(sizes.values()), 1)
    return tuple(records.values()), Bits(requested=wanted / count, achieved=stored / count, stored=stored, parameters=count)


def _expressions(source: Source) -> Sequence[Expr]:
    if source.packed is not None:
        return source.packed.pieces
    return () if source.expr is None else (source.expr,)


def _parameters(expressions: Sequence[Expr]) -> list[Parameter]:
    return [leaf for leaf in leaves(expressions) if isinstance(leaf, Parameter)]
