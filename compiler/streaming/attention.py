"""Attention over windows that lie one after the other in one step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from mixplan.passes.fx_ops.attention import attention_weights

__all__ = ["windowed_attention"]


def windowed_attention(
    lengths: Sequence[int],
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
    *,
    token_major: bool,
) -> Tensor:
    """`mixplan::attention` (or attention_tm) with every window a sequence of its own; gives [1, T, Hq, Dv].

    Windows of one length go through torch's fused attention together, where that knows the mask.
    """
    if not token_major:
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    length = lengths[0]
    plain = sinks is None and slopes is None and not softcap and (not window or window >= length)
    if plain and all(other == length for other in lengths):
        groups = q.shape[2] // k.shape[2]
        # [W, H, L, D], heads of keys and values repeated for the queries that share them.
        queries, keys, values = (x.reshape(len(lengths), length, *x.shape[2:]).transpose(1, 2) for x in (q, k, v))
        keys, values = (x.repeat_interleave(groups, 1) if groups > 1 else x for x in (keys, values))
        out = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True, scale=scale)
        return out.transpose(1, 2).reshape(1, -1, q.shape[2], v.shape[3])
    parts, start = [], 0
    for count in lengths:
        one = [x[:, start : start + count].transpose(1, 2) for x in (q, k, v)]
        groups = one[0].shape[1] // one[1].shape[1]
        weights = attention_weights(one[0], one[1].repeat_interleave(groups, 1), scale, window, softcap, sinks, slopes, mask)
        parts.append(torch.matmul(weights, one[2].float().repeat_interleave(groups, 1)).transpose(1, 2))
        start += count
    return torch.cat(parts, 1).contiguous().to(v.dtype)
