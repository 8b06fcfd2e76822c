"""Read an attention bias from its numbers: causal, window, chunk, ALiBi slopes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Bias", "read_bias"]

# Scores below this are masks: e^-1000 is zero in every format, and models write masks as -1e4 or the type's minimum.
_MASKED = -1000.0


@dataclass(frozen=True)
class Bias:
    """The bias in the terms of `mixplan::attention`."""

    mask: str = "causal"
    window: int = 0
    slopes: tuple[float, ...] | None = None


def read_bias(terms: list[tuple[float, Tensor]], keeps: list[Tensor], heads: int, tokens: int) -> Bias | None:
    """Explain sum(factor * term) under the masks `keeps`, all broadcastable to [heads, tokens, tokens].

    None where it can't be explained.
    """
    shape = (heads, tokens, tokens)
    total, keep = torch.zeros(shape, dtype=torch.float64), torch.ones(shape, dtype=torch.bool)
    for factor, term in terms:
        total += factor * _spread(term.double(), shape)
    for mask in keeps:
        keep &= _spread(mask, shape)
    keep &= total > _MASKED
    if bool((keep != keep[:1]).any()):
        return None
    kind = _kind(keep[0])
    if kind is None:
        return None
    # Softmax ignores what is the same for all keys of a query: measure from the diagonal.
    diagonal = total.diagonal(dim1=1, dim2=2).unsqueeze(-1)
    relative = torch.where(keep, total - diagonal, torch.zeros(()))
    if not bool(relative.abs().max() > 1e-6):
        return Bias(*kind)
    query, key = torch.arange(tokens)[:, None], torch.arange(tokens)[None, :]
    distance = (key - query).double()
    slopes = relative[:, 1, 0] / distance[1, 0]
    expected = torch.where(keep, slopes[:, None, None] * distance, torch.zeros(()))
    if not torch.allclose(relative, expected, rtol=1e-3, atol=1e-3):
        return None
    return Bias(*kind, slopes=tuple(float(slope) for slope in slopes))


def _spread(value: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """[..., H or 1, T or 1, T or 1] or [1, T] as [H, T, T]."""
    if value.ndim == 4:
        value = value[0]
    return value.expand(shape)


def _kind(keep: Tensor) -> tuple[str, int] | None:
    tokens = keep.shape[0]
    query, key = torch.arange(tokens)[:, None], torch.arange(tokens)[None, :]
    if torch.equal(keep, key <= query):
        return "causal", 0
    window = int(keep[-1].sum())
    if torch.equal(keep, (key <= query) & (key > query - window)):
        return "causal", window
    chunk = next((n for n in range(1, tokens) if not bool(keep[n, 0])), 0)
    if chunk and torch.equal(keep, (key <= query) & (key // chunk == query // chunk)):
        return "chunked", chunk
    return None
