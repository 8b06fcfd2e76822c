"""Linear layers on quantized activations: `mixplan::linear_q` and `mixplan::gated_linear_q`.

The weight is the float expression until a plan's bytes are written; executed by torch, only the activations are rounded.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mixplan.passes.fx_ops.gated_linear import gated_linear
from mixplan.passes.fx_ops.linear import linear
from mixplan.passes.fx_ops.quantize import dequantize
from mixplan.passes.fx_ops.register import define

__all__ = ["GATED_LINEAR_Q", "LINEAR_Q"]


def linear_q(q: Tensor, scales: Tensor, sums: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, group: int) -> Tensor:
    """linear(x, weight, bias, residual) for x as quantize_act(x, group) gives it: q i8 [..., Kp], scales and sums [..., G]."""
    return linear(dequantize(q, scales, weight.shape[1]), weight, bias, residual)


def gated_linear_q(
    q: Tensor,
    scales: Tensor,
    sums: Tensor,
    w_gate: Tensor,
    w_up: Tensor,
    b_gate: Tensor | None,
    b_up: Tensor | None,
    activation: str,
    group: int,
) -> Tensor:
    """gated_linear(x, ...) for x as quantize_act(x, group) gives it."""
    return gated_linear(dequantize(q, scales, w_gate.shape[1]), w_gate, w_up, b_gate, b_up, activation)


def _linear_fake(
    q: Tensor, scales: Tensor, sums: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, group: int
) -> Tensor:
    return q.new_empty((*q.shape[:-1], weight.shape[0]), dtype=torch.float32)


def _gated_fake(
    q: Tensor,
    scales: Tensor,
    sums: Tensor,
    w_gate: Tensor,
    w_up: Tensor,
    b_gate: Tensor | None,
    b_up: Tensor | None,
    activation: str,
    group: int,
) -> Tensor:
    return q.new_empty((*q.shape[:-1], w_gate.shape[0]), dtype=torch.float32)


LINEAR_Q = define("linear_q", linear_q, _linear_fake)
GATED_LINEAR_Q = define("gated_linear_q", gated_linear_q, _gated_fake)
