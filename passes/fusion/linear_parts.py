"""Taking linear nodes apart and putting them together again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import fx

from mixplan.passes.decision import DECISION, LayerDecision, decision_of
from mixplan.passes.fx_ops import LINEAR
from mixplan.passes.patterns import is_call
from mixplan.passes.rewriting import Rewriter

__all__ = ["LinearParts", "make_linear", "parts_of"]


@dataclass(frozen=True)
class LinearParts:
    """The arguments of a `mixplan::linear` node, and its decision."""

    x: fx.Node
    weight: fx.Node
    bias: fx.Node | None
    residual: fx.Node | None
    decision: LayerDecision | None


def parts_of(node: Any) -> LinearParts | None:
    """The node's parts, None where it is no linear node."""
    if not is_call(node, LINEAR):
        return None
    x, weight, bias, residual = (*node.args, None, None)[:4]
    return LinearParts(x, weight, bias, residual, decision_of(node))


def make_linear(edit: Rewriter, parts: LinearParts) -> fx.Node:
    """A linear node in front of the anchor."""
    edit.hoist(parts.weight, parts.bias)
    args = (parts.x, parts.weight, parts.bias)
    node = edit.call(LINEAR, *args) if parts.residual is None else edit.call(LINEAR, *args, parts.residual)
    if parts.decision is not None:
        node.meta[DECISION] = parts.decision
    return node
