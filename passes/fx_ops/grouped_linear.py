"""`mixplan::grouped_linear`: every token through the linear layers of the experts that it was routed to."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["GROUPED_LINEAR", "grouped_linear"]


@torch.library.custom_op("mixplan::grouped_linear", mutates_args=())
def grouped_linear(x: Tensor, expert_ids: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """y[t, j] = weight[expert_ids[t, j]] @ x[t, j] (+ bias).

    For x [T, J, K] or [T, 1, K], expert_ids i64 [T, J], weight [E, N, K], bias [E, N]; returns [T, J, N].
    The expert id E is a sentinel: no expert, the output is zero.
    """
    tokens, slots = expert_ids.shape
    experts, rows, columns = weight.shape
    x = x.expand(tokens, slots, columns)
    out = x.new_zeros(tokens, slots, rows)
    for expert in range(experts):
        token, slot = torch.nonzero(expert_ids == expert, as_tuple=True)
        if token.numel():
            y = x[token, slot] @ weight[expert].T
            out[token, slot] = y if bias is None else y + bias[expert]
    return out


@grouped_linear.register_fake
def _(x: Tensor, expert_ids: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return x.new_empty(expert_ids.shape[0], expert_ids.shape[1], weight.shape[1])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1], inputs[2])
    ctx.slots = inputs[0].shape[1]


def _gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
    """Of x alone: weights are constants."""
    expert_ids, weight = ctx.saved_tensors
    out = gradient.new_zeros(*expert_ids.shape, weight.shape[2])
    for expert in range(weight.shape[0]):
        token, slot = torch.nonzero(expert_ids == expert, as_tuple=True)
        if token.numel():
            out[token, slot] = gradient[token, slot] @ weight[expert]
    return (out.sum(1, keepdim=True) if ctx.slots == 1 else out), None, None, None


grouped_linear.register_autograd(_gradient, setup_context=_keep)

GROUPED_LINEAR = torch.ops.mixplan.grouped_linear.default
