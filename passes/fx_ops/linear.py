"""`mixplan::linear`: a linear layer with its bias and the residual that is added to its output."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from mixplan.passes.fx_ops.register import define

__all__ = ["LINEAR"]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, residual: Tensor | None = None) -> Tensor:
    """y = x W^T + bias + residual, for x [..., K], weight [N, K], bias [N], residual [..., N]."""
    y = functional.linear(x, weight, bias)
    return y if residual is None else y + residual


def _fake(x: Tensor, weight: Tensor, bias: Tensor | None = None, residual: Tensor | None = None) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


LINEAR = define("linear", linear, _fake)
