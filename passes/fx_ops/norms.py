"""`mixplan::rms_norm` and `mixplan::layer_norm`, over the last dimension."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from mixplan.passes.fx_ops.register import define

__all__ = ["LAYER_NORM", "RMS_NORM", "layer_norm", "rms_norm"]


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight, for x [..., D], weight [D] (Zhang and Sennrich, arXiv:1910.07467)."""
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return y if weight is None else y * weight


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """(x - mean(x)) / sqrt(var(x) + eps) * weight + bias, for x [..., D], weight and bias [D] (Ba et al., arXiv:1607.06450)."""
    return functional.layer_norm(x, (x.shape[-1],), weight, bias, eps)


def _rms_fake(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    return x.new_empty(x.shape)


def _layer_fake(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    return x.new_empty(x.shape)


RMS_NORM = define("rms_norm", rms_norm, _rms_fake)
LAYER_NORM = define("layer_norm", layer_norm, _layer_fake)
