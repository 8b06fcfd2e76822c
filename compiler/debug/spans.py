"""A plan cut into spans: the nodes between values that the original computes too.

Fusion leaves nodes without a counterpart (a quantized norm, a merged projection). What they do wrong shows at the next value that has one,
so figures are of spans: each ends at a node whose value is compared, and begins behind the compared values that it is computed from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import fx

from mixplan.compiler.decisions import layer_name
from mixplan.compiler.verify_report import MOVES
from mixplan.runtime.plan import Node, Plan

__all__ = ["Span", "find_spans"]


@dataclass(frozen=True)
class Span:
    """node: the one whose value is compared; `value` is its name, `origin` its counterpart. ops: what is computed, in order. layers: whose
    parameters take part, those with a decision first; decided: how many those are; schemes: theirs."""

    node: str
    value: str
    origin: str
    ops: tuple[str, ...]
    layers: tuple[str, ...]
    decided: int
    schemes: tuple[str, ...]

    @property
    def title(self) -> str:
        """The layers with a decision, else all, else the node: model.layers.0.mlp.gate_proj+up_proj."""
        first, *others = self.layers[: self.decided] or self.layers or (self.node,)
        return "+".join([first, *(layer.rpartition(".")[2] for layer in others)])


def find_spans(plan: Plan, graph: fx.GraphModule, compared: Iterable[str]) -> list[Span]:
    """The spans that compute something, in the plan's order. compared: names of nodes whose value the original has in the same shape."""
    ends = set(compared)
    layers = _layers(graph, {node.origin for node in plan.nodes if node.name in ends})
    schemes = {decision.layer: decision.scheme for decision in plan.decisions}
    inside: dict[int, tuple[int, ...]] = {}
    spans = []
    for index, node in enumerate(plan.nodes):
        before = sorted({number for value in node.inputs for number in inside.get(value, ())})
        numbers = (*before, *(() if node.op in MOVES else (index,)))
        if node.name not in ends:
            inside.update(dict.fromkeys(node.outputs, numbers))
        elif numbers:
            spans.append(_span(plan, node, tuple(plan.nodes[number].op for number in numbers), layers.get(node.origin, ()), schemes))
    return spans


def _span(plan: Plan, node: Node, ops: tuple[str, ...], layers: tuple[str, ...], schemes: Mapping[str, str]) -> Span:
    ordered = sorted(layers, key=lambda layer: layer not in schemes)
    used = [schemes[layer] for layer in ordered if layer in schemes]
    return Span(node.name, plan.values[node.outputs[0]].name, node.origin, ops, tuple(ordered), len(used), tuple(dict.fromkeys(used)))


def _layers(graph: fx.GraphModule, origins: set[str]) -> dict[str, tuple[str, ...]]:
    """The layers whose parameters each origin is computed with, behind the other origins that it is computed from."""
    found: dict[fx.Node, tuple[str, ...]] = {}
    out = {}
    for node in graph.graph.nodes:
        if node.op == "get_attr":
            found[node] = (layer_name(str(node.target)),)
            continue
        made = tuple(dict.fromkeys(layer for given in node.all_input_nodes for layer in found.get(given, ())))
        if node.name in origins:
            out[node.name] = made
        else:
            found[node] = made
    return out
