"""`mixplan::attention`: the one op of a captured graph that mixes tokens.

Captured from transformers' attention interface in head-major layout. The eager implementation is the meaning of the op for a single
sequence that starts at position 0; the runtime gives it the ragged, cached meaning.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["attention", "attention_weights"]


def attention_weights(
    q: Tensor, k: Tensor, scale: float, window: int, softcap: float, sinks: Tensor | None, slopes: Tensor | None, mask: str
) -> Tensor:
    """Softmax weights [1, Hq, T, T] of one sequence for q [1, Hq, T, D] and k [1, Hq, T, D].

    mask "causal" with window w > 0 keeps keys with position > query - w; "chunked" keeps keys of the query's chunk of `window` tokens.
    `slopes` [Hq] adds slope * (key - query) (ALiBi); `sinks` [Hq] is one more logit per head that takes weight and gives no value.
    """
    tokens = q.shape[2]
    scores = torch.matmul(q.float(), k.float().transpose(2, 3)) * scale
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    query = torch.arange(tokens, device=q.device)[:, None]
    key = torch.arange(tokens, device=q.device)[None, :]
    if slopes is not None:
        scores = scores + slopes.float().reshape(1, -1, 1, 1) * (key - query)
    keep = key <= query
    if mask == "chunked":
        keep = keep & (key // window == query // window)
    elif window:
        keep = keep & (key > query - window)
    scores = scores.masked_fill(~keep, float("-inf"))
    if sinks is not None:
        scores = torch.cat([scores, sinks.float().reshape(1, -1, 1, 1).expand(1, q.shape[1], tokens, 1)], dim=-1)
    weights = torch.softmax(scores, dim=-1)
    return weights[..., :tokens]


@torch.library.custom_op("mixplan::attention", mutates_args=())
def attention(
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
    """Attention of q [1, Hq, T, Dk] over k [1, Hkv, T, Dk] and v [1, Hkv, T, Dv]; returns [1, T, Hq, Dv]."""
    groups = q.shape[1] // k.shape[1]
    weights = attention_weights(q, k.repeat_interleave(groups, 1), scale, window, softcap, sinks, slopes, mask)
    out = torch.matmul(weights, v.float().repeat_interleave(groups, 1))
    return out.transpose(1, 2).contiguous().to(v.dtype)


@attention.register_fake
def _(
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
    return v.new_empty(q.shape[0], q.shape[2], q.shape[1], v.shape[3])
