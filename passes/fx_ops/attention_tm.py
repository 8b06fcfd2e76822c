"""`mixplan::attention_tm`: `mixplan::attention` with token-major heads, the layout that projections produce and caches store."""

from __future__ import annotations

import torch
from torch import Tensor

from mixplan.passes.fx_ops.attention import attention  # noqa: F401  registers the op that the eager function calls
from mixplan.passes.fx_ops.register import define

__all__ = ["ATTENTION", "ATTENTION_TM"]


def attention_tm(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    layer: int,
    window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    slopes: Tensor | None = None,
    mask: str = "causal",
) -> Tensor:
    """Attention of q [1, T, Hq, Dk] over k [1, T, Hkv, Dk] and v [1, T, Hkv, Dv]; returns [1, T, Hq, Dv]."""
    heads = [x.transpose(1, 2) for x in (q, k, v)]
    out: Tensor = torch.ops.mixplan.attention(*heads, scale, layer, window, softcap, sinks, slopes, mask)
    return out


def _fake(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    layer: int,
    window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    slopes: Tensor | None = None,
    mask: str = "causal",
) -> Tensor:
    return v.new_empty((q.shape[0], q.shape[1], q.shape[2], v.shape[3]))


ATTENTION = torch.ops.mixplan.attention.default
ATTENTION_TM = define("attention_tm", attention_tm, _fake)
