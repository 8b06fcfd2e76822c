"""Gives every layer its scheme: the uniform one, or that of the override that names it."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from mixplan.passes.base import FunctionPass, PassContext, PassResult
from mixplan.passes.decision import DECISION, RULE_SOURCE, LayerDecision
from mixplan.passes.fx_ops import GROUPED_LINEAR
from mixplan.passes.precision.covering import covering
from mixplan.passes.precision.effective_bits import LayerSize
from mixplan.passes.precision.layers import Layer, layers_of
from mixplan.passes.precision.overrides import RULE_OVERRIDE, resolve
from mixplan.passes.precision.schemes import Scheme, parse_scheme

__all__ = ["ASSIGN_PRECISION", "HEAD_REASON", "RULE_COMPUTED", "RULE_HEAD", "RULE_OVERRIDE", "RULE_UNIFORM"]

RULE_UNIFORM = "uniform"
RULE_COMPUTED = "computed"
RULE_HEAD = "head"
HEAD_REASON = (
    "the logits come straight from this layer: in 4 bits or fewer it alone costs about half as much accuracy as all others together"
)


def _run(graph: fx.GraphModule, context: PassContext) -> PassResult:
    layers = layers_of(graph, context.tied)
    chosen = resolve(context.options.overrides, {layer.name: layer.aliases for layer in layers})
    heads = _heads(graph, layers)
    for layer in layers:
        override = chosen.get(layer.name)
        stored = _stored(layer, context)
        if not layer.parameter:
            reason = "the module computes this table; the checkpoint does not hold it"
            decision = LayerDecision(layer.name, parse_scheme("FP32"), RULE_COMPUTED, reason)
        elif override is not None:
            decision = LayerDecision(layer.name, override.scheme, override.rule, override.reason or override.text)
        elif stored is not None:
            decision = LayerDecision(layer.name, stored[0], RULE_SOURCE, stored[1])
        elif context.options.scheme.weight.bits <= 4 and heads.intersection(layer.nodes):
            decision = LayerDecision(layer.name, _wider(context.options.scheme), RULE_HEAD, HEAD_REASON)
        else:
            decision = LayerDecision(layer.name, context.options.scheme, RULE_UNIFORM)
        context.decisions[layer.name] = decision
        context.sizes[layer.name] = LayerSize(layer.rows, layer.columns)
        for node in layer.nodes:
            node.meta[DECISION] = decision
        _note_plain_activations(layer, decision, context)
    return PassResult(graph, bool(layers), len(layers))


def _stored(layer: Layer, context: PassContext) -> tuple[Scheme, str] | None:
    """The scheme that holds what the checkpoint has of the layer, and the checkpoint's name for that."""
    found = [context.options.stored[name] for name in layer.name.split(" + ") if name in context.options.stored]
    if not found:
        return None
    return covering([scheme for scheme, _ in found]), ", ".join(dict.fromkeys(reason for _, reason in found))


def _heads(graph: fx.GraphModule, layers: Sequence[Layer]) -> set[fx.Node]:
    """The weight nodes whose output reaches the graph's output through no other one: they make the logits."""
    weighty = {node for layer in layers for node in layer.nodes}
    found: set[fx.Node] = set()
    seen: set[fx.Node] = set()
    pending = list(graph.graph.output_node().all_input_nodes)
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        if node in weighty:
            found.add(node)
        else:
            pending.extend(node.all_input_nodes)
    return found


def _wider(scheme: Scheme) -> Scheme:
    """8 bits per channel, the activations as they are."""
    return parse_scheme("W8A8" if scheme.activation == "i8" else "W8A16")


def _note_plain_activations(layer: Layer, decision: LayerDecision, context: PassContext) -> None:
    """Experts and tables take their input unrounded whatever the scheme says; that is a "no", and recorded."""
    if decision.scheme.activation not in ("i8", "e4m3"):
        return
    for node in layer.nodes:
        if node.target is GROUPED_LINEAR:
            context.rejections.add(
                "quantize_activation",
                node.name,
                f"{layer.name}: experts have no kernel for {decision.scheme.activation} activations; "
                f"their input stays f32 under {decision.scheme}",
            )


ASSIGN_PRECISION = FunctionPass("assign_precision", "precision", "the scheme of every layer: uniform, or by override", _run)
