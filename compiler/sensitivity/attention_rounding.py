"""What rounding keys, values and queries of an attention layer costs: 1/2 sum E[g^2 d^2], with each element's rounding error d as it is.

Errors of one head are taken as independent, as those of weights are (see gradients.py); the gradient g at a key or value is of the losses
of all tokens that look at it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from mixplan.runtime.kv_format import CODES, KvCodes, KvFormat, dequantize, quantize

__all__ = ["AttentionLoss", "watch_attention"]

_QUERY_TOP = 127.0


@dataclass
class AttentionLoss:
    """keys, values: by bits, nats of each KV head [heads]. queries: nats of all heads, where scores are integer products. Sums over tokens
    until `mean`."""

    keys: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)
    queries: float = 0.0

    def mean(self, tokens: int) -> AttentionLoss:
        """By token."""
        keys, values = ({bits: sums / tokens for bits, sums in found.items()} for found in (self.keys, self.values))
        return AttentionLoss(keys, values, self.queries / tokens)

    def of(self, held: KvFormat) -> list[float]:
        """Nats of each KV head in a format; 0 where it holds no integers."""
        heads = len(next(iter(self.keys.values()), ()))
        parts = [table[codes.bits] for table, codes in ((self.keys, held.keys), (self.values, held.values)) if isinstance(codes, KvCodes)]
        return [sum(float(part[head]) for part in parts) for head in range(heads)]


def watch_attention(found: AttentionLoss, q: Tensor, k: Tensor, v: Tensor, *, token_major: bool) -> None:
    """Add to `found`, as gradients arrive, what rounding costs. q, k, v: [1, T, H, D] where token-major, else [1, H, T, D]."""
    for sums, x in ((found.keys, k), (found.values, v)):
        _watch(sums, x, token_major)
    if q.requires_grad:
        error = _query_error(q)

        def add(gradient: Tensor) -> None:
            found.queries += 0.5 * float((gradient * error).square().sum())

        q.register_hook(add)


def _watch(sums: dict[int, Tensor], x: Tensor, token_major: bool) -> None:
    if not x.requires_grad:
        return
    heads = _by_token(x.detach(), token_major)
    errors = {bits: _error(heads, codes) for bits, codes in CODES.items()}

    def add(gradient: Tensor) -> None:
        squares = _by_token(gradient, token_major).square()
        for bits, error in errors.items():
            sums[bits] = sums.get(bits, torch.zeros(x.shape[2 if token_major else 1])) + 0.5 * (squares * error.square()).sum((0, 2))

    x.register_hook(add)


def _by_token(x: Tensor, token_major: bool) -> Tensor:
    """[T, H, D] f32."""
    return (x if token_major else x.transpose(1, 2))[0].float()


def _error(heads: Tensor, codes: KvCodes) -> Tensor:
    exact = np.ascontiguousarray(heads.numpy())
    return torch.from_numpy(dequantize(*quantize(exact, codes), codes) - exact)


def _query_error(q: Tensor) -> Tensor:
    """Of rounding to int8, with a scale for each token and head: as the op attention rounds them (runtime/ops/attention.py)."""
    exact = q.detach().float()
    scale = exact.abs().amax(-1, keepdim=True) / _QUERY_TOP
    return torch.where(scale > 0, torch.round(exact / scale) * scale, exact) - exact
