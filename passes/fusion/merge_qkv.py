"""Projections of one input that meet in an attention node (query, key, value, and low-rank ones before them) become one linear layer."""

from __future__ import annotations

import torch
from torch import fx

from mixplan.passes.base import FunctionPass, PassContext, PassResult
from mixplan.passes.canonicalize.elementwise import is_elementwise
from mixplan.passes.decision import DECISION, merged_decision
from mixplan.passes.fusion.linear_parts import LinearParts, parts_of
from mixplan.passes.fx_ops import ATTENTION_TM, LAYER_NORM, LINEAR, RMS_NORM, ROPE
from mixplan.passes.patterns import aten, dims, is_call, is_parameter, mark_constants, rank, source_line
from mixplan.passes.rewriting import Rewriter

__all__ = ["MERGE_QKV"]

_RULE = "merge_qkv"
_TO_PROJECTION = (aten.reshape.default, aten.slice.Tensor, aten.cat.default, aten.permute.default, aten.expand.default)
_TO_LOW_RANK = (aten.slice.Tensor, aten.reshape.default, RMS_NORM, LAYER_NORM)


def _run(graph: fx.GraphModule, context: PassContext) -> PassResult:
    edit = Rewriter(graph, _RULE)
    merged: set[fx.Node] = set()
    count = 0
    for attention in [node for node in graph.graph.nodes if is_call(node, ATTENTION_TM)]:
        by_input: dict[fx.Node, list[fx.Node]] = {}
        for linear in _projections(attention):
            if linear not in merged:
                by_input.setdefault(linear.args[0], []).append(linear)
        for linears in by_input.values():
            for group in _mergeable(linears, context):
                mark_constants(graph.graph)
                _merge(sorted(group), edit)
                merged.update(group)
                count += 1
    return PassResult(graph, count > 0, count)


def _projections(attention: fx.Node) -> list[fx.Node]:
    """Linear nodes whose outputs reach q, k or v without another product between, and the low-rank ones right before those."""
    found: dict[fx.Node, None] = {}
    pending: list[tuple[fx.Node, bool]] = [(x, True) for x in attention.args[:3] if isinstance(x, fx.Node)]
    seen: set[fx.Node] = set()
    while pending:
        node, direct = pending.pop(0)
        if node in seen:
            continue
        seen.add(node)
        if is_call(node, LINEAR):
            found.setdefault(node)
            if direct and isinstance(node.args[0], fx.Node):
                pending.append((node.args[0], False))
        elif is_call(node, *_TO_LOW_RANK):
            pending.append((node.args[0], direct))
        elif direct and is_call(node, ROPE):
            pending.append((node.args[0], True))
        elif direct and (is_call(node, *_TO_PROJECTION) or is_elementwise(node)):
            pending += [(source, True) for source in node.all_input_nodes]
    return list(found)


def _mergeable(linears: list[fx.Node], context: PassContext) -> list[list[fx.Node]]:
    """Groups of at least two that may be merged; every "no" among linears of one input is recorded."""
    if len(linears) < 2:
        return []
    fit: list[fx.Node] = []
    for linear in linears:
        parts = parts_of(linear)
        reason = _problem(parts)
        if reason is None:
            fit.append(linear)
        else:
            context.rejections.add(_RULE, linear.name, reason, source_line(linear))
    groups: dict[object, list[fx.Node]] = {}
    for linear in fit:
        decision = linear.meta.get(DECISION)
        groups.setdefault(decision.scheme if decision is not None else None, []).append(linear)
    if len(groups) > 1:
        described = ", ".join(f"{linear.meta[DECISION].layer} {linear.meta[DECISION].scheme}" for linear in fit)
        context.rejections.add(_RULE, fit[0].name, f"the layers have different schemes: {described}", source_line(fit[0]))
    return [group for group in groups.values() if len(group) > 1]


def _problem(parts: LinearParts | None) -> str | None:
    if parts is None:
        return "it is not a linear layer"
    if parts.residual is not None:
        return "it adds a residual"
    weight = parts.weight
    while is_call(weight, aten.mul.Tensor) and is_parameter(weight.args[1]):  # scaled (scale_inputs.py)
        weight = weight.args[0]
    plain = is_parameter(weight) or (is_call(weight, aten.permute.default) and is_parameter(weight.args[0]))
    return None if plain else f"its weight {parts.weight} is not a plain weight of the checkpoint"


def _merge(linears: list[fx.Node], edit: Rewriter) -> None:
    first = linears[0]
    edit.anchor = first
    parts = [found for found in map(parts_of, linears) if found is not None]
    edit.hoist(*[part.weight for part in parts], *[part.bias for part in parts])
    weight = edit.call(aten.cat.default, [part.weight for part in parts], 0)
    bias = None
    if any(part.bias is not None for part in parts):
        bias = edit.call(aten.cat.default, [_bias(part, edit) for part in parts], 0)
    new = edit.call(LINEAR, parts[0].x, weight, bias)
    decisions = [part.decision for part in parts if part.decision is not None]
    if decisions:
        new.meta[DECISION] = merged_decision(decisions)
    # All slices stand in front of the first layer, so they are made before it is erased.
    axis, at, slices = rank(first) - 1, 0, []
    for linear in linears:
        width = int(dims(linear)[-1])
        slices.append(edit.call(aten.slice.Tensor, new, axis, at, at + width))
        at += width
    for linear, part in zip(linears, slices, strict=True):
        edit.replace(linear, part)


def _bias(part: LinearParts, edit: Rewriter) -> fx.Node:
    """The bias, or zeros of its shape."""
    return part.bias if part.bias is not None else edit.constant(torch.zeros(int(dims(part.weight)[0])), "no_bias")


MERGE_QKV = FunctionPass(_RULE, "fusion", "query, key and value projections of one input to one linear layer", _run)
