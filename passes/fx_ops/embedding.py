"""`mixplan::embedding`: rows of a table that is stored in a weight format."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from mixplan.passes.fx_ops.register import define

__all__ = ["EMBEDDING"]


def embedding(ids: Tensor, weight: Tensor) -> Tensor:
    """weight[ids], for ids i64 [...] and weight [V, K]; returns [..., K]."""
    return functional.embedding(ids, weight)


def _fake(ids: Tensor, weight: Tensor) -> Tensor:
    return weight.new_empty((*ids.shape, weight.shape[1]))


EMBEDDING = define("embedding", embedding, _fake)
