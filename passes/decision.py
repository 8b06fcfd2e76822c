"""The record that stands in `node.meta["mixplan"]`: how a layer's weight is stored and computed with, and who said so."""

from __future__ import annotations

from dataclasses import dataclass

from mixplan.passes.precision.schemes import Scheme

__all__ = ["DECISION", "RULE_SOURCE", "LayerDecision", "decision_of", "merged_decision", "takes_over"]

DECISION = "mixplan"
"""Key of the record in a node's meta."""

RULE_SOURCE = "source"
_JOINT = " + "


@dataclass(frozen=True)
class LayerDecision:
    """`layer` is the checkpoint's module name; a node that merges several layers names them all, joined by " + "."""

    layer: str
    scheme: Scheme
    rule: str
    reason: str = ""


def decision_of(node: object) -> LayerDecision | None:
    """The node's decision, None before precision assignment."""
    found = getattr(node, "meta", {}).get(DECISION)
    return found if isinstance(found, LayerDecision) else None


def takes_over(decision: LayerDecision | None) -> bool:
    """Whether the layer's codes are to be those of the checkpoint."""
    return decision is not None and RULE_SOURCE in decision.rule.split(_JOINT)


def merged_decision(decisions: list[LayerDecision]) -> LayerDecision:
    """One record for layers that are computed as one; their schemes must be equal."""
    layers = list(dict.fromkeys(decision.layer for decision in decisions))
    reasons = list(dict.fromkeys(decision.reason for decision in decisions if decision.reason))
    rules = list(dict.fromkeys(decision.rule for decision in decisions))
    return LayerDecision(" + ".join(layers), decisions[0].scheme, _JOINT.join(rules), "; ".join(reasons))
