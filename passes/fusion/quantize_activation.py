"""Schemes with int8 activations: the input of a layer is quantized once for all layers that read it with the same group."""

from __future__ import annotations

import operator
from typing import Any

from torch import fx

from mixplan.passes.base import FunctionPass, PassContext, PassResult
from mixplan.passes.decision import DECISION, decision_of
from mixplan.passes.fx_ops import GATED_LINEAR, GATED_LINEAR_Q, LINEAR, LINEAR_Q, QUANTIZE_ACT
from mixplan.passes.patterns import is_call
from mixplan.passes.rewriting import Rewriter

__all__ = ["QUANTIZE_ACTIVATION", "quantized_parts"]

_RULE = "quantize_activation"


def _run(graph: fx.GraphModule, context: PassContext) -> PassResult:
    edit = Rewriter(graph, _RULE)
    made: dict[tuple[fx.Node, int], list[fx.Node]] = {}
    count = 0
    for node in list(graph.graph.nodes):
        decision = decision_of(node)
        if not is_call(node, LINEAR, GATED_LINEAR) or decision is None or decision.scheme.activation != "i8":
            continue
        edit.anchor = node
        x, group = node.args[0], decision.scheme.group
        if (x, group) not in made:
            made[x, group] = quantized_parts(edit, edit.call(QUANTIZE_ACT, x, group))
        parts = made[x, group]
        if is_call(node, LINEAR):
            weight, bias, residual = (*node.args[1:], None, None)[:3]
            new = edit.call(LINEAR_Q, *parts, weight, bias, residual, group)
        else:
            new = edit.call(GATED_LINEAR_Q, *parts, *node.args[1:], group)
        new.meta[DECISION] = decision
        edit.replace(node, new)
        count += 1
    return PassResult(graph, count > 0, count)


def quantized_parts(edit: Rewriter, call: fx.Node) -> list[fx.Node]:
    """q, scales and sums of a node that quantizes."""

    def part(index: int) -> Any:
        return edit.call(operator.getitem, call, index)

    return [part(index) for index in range(3)]


QUANTIZE_ACTIVATION = FunctionPass(_RULE, "fusion", "inputs of layers with int8 activations, quantized once each", _run)
