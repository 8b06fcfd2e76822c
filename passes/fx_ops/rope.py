"""`mixplan::rope`: rotary position embedding of token-major heads (Su et al., arXiv:2104.09864)."""

from __future__ import annotations

import torch
from torch import Tensor

from mixplan.passes.fx_ops.register import define
from mixplan.runtime.errors import InternalError

__all__ = ["ROPE", "STYLES"]

STYLES = ("half", "interleaved")


def rope(x: Tensor, cos: Tensor, sin: Tensor, style: str) -> Tensor:
    """Rotate the first Dr dimensions of x [1, T, H, D] by cos and sin [1, T, Dr]; the rest passes through.

    style "half" pairs dimension i with i + Dr/2, "interleaved" pairs 2i with 2i + 1. cos and sin hold one number for each dimension.
    """
    width = cos.shape[-1]
    head = x[..., :width]
    if style == "half":
        turned = torch.cat([-head[..., width // 2 :], head[..., : width // 2]], -1)
    elif style == "interleaved":
        turned = torch.stack([-head[..., 1::2], head[..., 0::2]], -1).flatten(-2)
    else:
        raise InternalError(f"Rope style {style!r} is not known; allowed: {', '.join(STYLES)}.")
    rotated = head * cos.unsqueeze(2) + turned * sin.unsqueeze(2)
    return torch.cat([rotated, x[..., width:]], -1)


def _fake(x: Tensor, cos: Tensor, sin: Tensor, style: str) -> Tensor:
    return x.new_empty(x.shape)


ROPE = define("rope", rope, _fake)
