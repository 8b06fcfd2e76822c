"""`mixplan::gated_linear`: two linear layers on one input, one of them activated, multiplied."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from mixplan.passes.fx_ops.activations import apply_activation
from mixplan.passes.fx_ops.register import define

__all__ = ["GATED_LINEAR"]


def gated_linear(x: Tensor, w_gate: Tensor, w_up: Tensor, b_gate: Tensor | None, b_up: Tensor | None, activation: str) -> Tensor:
    """act(x Wg^T + bg) * (x Wu^T + bu), for x [..., K], weights [I, K], biases [I]; returns [..., I]."""
    return apply_activation(activation, functional.linear(x, w_gate, b_gate)) * functional.linear(x, w_up, b_up)


def _fake(x: Tensor, w_gate: Tensor, w_up: Tensor, b_gate: Tensor | None, b_up: Tensor | None, activation: str) -> Tensor:
    return x.new_empty((*x.shape[:-1], w_gate.shape[0]))


GATED_LINEAR = define("gated_linear", gated_linear, _fake)
