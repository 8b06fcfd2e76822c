"""Gated linear units: act(gate(x)) * up(x) as one op, from two linear layers or from the two halves of one (Shazeer, arXiv:2002.05202)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import fx

from mixplan.passes.decision import DECISION, LayerDecision, merged_decision
from mixplan.passes.fusion.linear_parts import LinearParts, parts_of
from mixplan.passes.fx_ops import GATED_LINEAR
from mixplan.passes.patterns import Miss, aten, commuted, dims, is_call, rank, scalar_of, slice_bounds
from mixplan.passes.rewriting import Rewriter
from mixplan.passes.rules import Rule

__all__ = ["Gated", "activation_of"]

_ACTIVATIONS = {
    aten.silu.default: "silu",
    aten.relu.default: "relu",
    aten.sigmoid.default: "sigmoid",
    aten.tanh.default: "tanh",
}


@dataclass(frozen=True)
class _Side:
    """A linear layer, or rows [start, stop) of one's output."""

    linear: fx.Node
    parts: LinearParts
    start: int
    stop: int
    value: fx.Node


@dataclass(frozen=True)
class Found:
    """Both sides of the product."""

    gate: _Side
    up: _Side
    activation: str


class Gated(Rule[Found]):
    """act(linear(x, Wg)) * linear(x, Wu) -> gated_linear(x, Wg, Wu, act)."""

    name: ClassVar[str] = "gated"
    targets: ClassVar[tuple[Any, ...]] = (aten.mul.Tensor,)

    def pattern(self, node: fx.Node) -> Found | Miss | None:
        for activated, other in commuted(node):
            act = activation_of(activated)
            if act is None:
                continue
            gate, up = _side(act[0]), _side(other)
            if gate is None or up is None:
                continue
            if len(activated.users) > 1:
                return Miss(f"{activated} has other users")
            return Found(gate, up, act[1])
        return None

    def check(self, match: Found) -> Miss | None:
        gate, up = match.gate, match.up
        if gate.parts.x is not up.parts.x:
            return Miss(f"the layers have different inputs, {gate.parts.x} and {up.parts.x}")
        if dims(gate.value) != dims(up.value):
            return Miss(f"the layers have outputs of shapes {list(dims(gate.value))} and {list(dims(up.value))}")
        if gate.parts.residual is not None or up.parts.residual is not None:
            return Miss("a residual is added before the product")
        for side in (gate, up):
            allowed = {gate.value, up.value} if side.value is not side.linear else set(side.linear.users)
            if not set(side.linear.users) <= allowed or len(side.value.users) > 1:
                return Miss(f"{side.linear} has other users")
        if _scheme(gate) != _scheme(up):
            return Miss(f"the layers have different schemes, {_scheme(gate)} and {_scheme(up)}")
        return None

    def rewrite(self, node: fx.Node, match: Found, edit: Rewriter) -> None:
        gate, up = match.gate, match.up
        weights = [_rows(edit, side.parts.weight, side) for side in (gate, up)]
        biases = [None if side.parts.bias is None else _rows(edit, side.parts.bias, side) for side in (gate, up)]
        edit.hoist(*weights, *biases)
        new = edit.call(GATED_LINEAR, gate.parts.x, *weights, *biases, match.activation)
        decisions = [side.parts.decision for side in (gate, up) if side.parts.decision is not None]
        if decisions:
            new.meta[DECISION] = merged_decision(decisions)
        edit.replace(node, new)


def activation_of(node: Any) -> tuple[fx.Node, str] | None:
    """(x, name) where the node is an activation that the fused op has."""
    if not isinstance(node, fx.Node) or node.op != "call_function":
        return None
    if node.target in _ACTIVATIONS:
        return node.args[0], _ACTIVATIONS[node.target]
    if is_call(node, aten.gelu.default):
        return node.args[0], "gelu_tanh" if node.kwargs.get("approximate", "none") == "tanh" else "gelu"
    squared = is_call(node, aten.square.default) or (is_call(node, aten.pow.Tensor_Scalar) and scalar_of(node.args[1]) == 2.0)
    if squared and is_call(node.args[0], aten.relu.default) and len(node.args[0].users) == 1:
        return node.args[0].args[0], "relu2"
    return None


def _side(node: Any) -> _Side | None:
    parts = parts_of(node)
    if parts is not None:
        return _Side(node, parts, 0, int(dims(parts.weight)[0]), node)
    bounds = slice_bounds(node)
    if bounds is None:
        return None
    linear, axis, start, stop, step = bounds
    parts = parts_of(linear)
    if parts is None or axis != rank(linear) - 1 or step != 1:
        return None
    return _Side(linear, parts, start, stop, node)


def _rows(edit: Rewriter, constant: fx.Node, side: _Side) -> fx.Node:
    if (side.start, side.stop) == (0, dims(constant)[0]):
        return constant
    return edit.call(aten.slice.Tensor, constant, 0, side.start, side.stop)


def _scheme(side: _Side) -> object:
    decision: LayerDecision | None = side.parts.decision
    return None if decision is None else decision.scheme
