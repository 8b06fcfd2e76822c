"""Rows, gathers, scatters and assignments: exported with a dynamic T, lowered, run by the references, against torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

T = 5
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(T, 8, generator=GENERATOR)

ROWS = torch.randint(0, 6, (T, 2), generator=GENERATOR)
INDEX: dict[str, tuple[Callable[..., Any], torch.Tensor, torch.Tensor]] = {
    "take": (lambda m, x, i: x[:, i[0]], torch.randn(T, 8, generator=GENERATOR), ROWS),
    "index table": (lambda m, x, i: m.weight[i], X, ROWS),
    "index negative": (lambda m, x, i: m.weight[i - 3], X, ROWS),
    "index two": (lambda m, x, i: m.weight[i, i + 1], X, ROWS),
    "index apart": (lambda m, x, i: m.weight.reshape(6, 2, 4)[i % 4, :, i % 4], X, ROWS),
    "index middle": (lambda m, x, i: x.reshape(-1, 2, 4)[:, i[0] % 2, i[0] % 4], X, ROWS),
    "index_select": (lambda m, x, i: x.index_select(1, i[0]), X, ROWS),
    "gather": (lambda m, x, i: x.gather(1, i), X, ROWS),
    "scatter value": (lambda m, x, i: torch.zeros_like(x).scatter(1, i, 1.0), X, ROWS),
    "scatter src": (lambda m, x, i: x.scatter(1, i[:, :1], x[:, 3:4]), X, ROWS),
    "scatter_add": (lambda m, x, i: x.scatter_add(1, i, x[:, :2]), X, ROWS),
    "scatter in place": (lambda m, x, i: torch.zeros_like(x).scatter_(1, i, 1), X, ROWS),
    "index_add": (lambda m, x, i: m.weight.t().new_zeros(6, 8).index_add(0, i[:, 0], x), X, ROWS),
    "index_put": (lambda m, x, i: _put(x, i), X, ROWS),
    "index_put two": (lambda m, x, i: m.weight.clone().index_put((i, i), x[:, :2] * 0 + 2.0), X, ROWS),
    "index_put accumulate": (lambda m, x, i: m.weight.clone().index_put((i[:, 0],), x, accumulate=True), X, ROWS),
    "masked assignment": (lambda m, x, i: _masked(x), X, ROWS),
    "slice assignment": (lambda m, x, i: _sliced(x), X, ROWS),
    "strided assignment": (lambda m, x, i: _strided(x), X, ROWS),
    "select assignment": (lambda m, x, i: _selected(x), X, ROWS),
    "in place": (lambda m, x, i: _in_place(x), X, ROWS),
    "embedding": (lambda m, x, i: functional.embedding(i, m.weight), X, ROWS),
    "embedding padding_idx": (lambda m, x, i: functional.embedding(i, m.weight, padding_idx=0), X, ROWS),
    "histc": (lambda m, x, i: torch.histc(i.reshape(-1).float(), 6, 0, 5), X, ROWS),
    "inverse permutation": (lambda m, x, i: _inverse(i), X, ROWS),
    "bucketize": (lambda m, x, i: torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0])), X, ROWS),
}


def _put(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(i[:, 0])
    order = i[:, 0].argsort()
    out[order] = torch.arange(i.shape[0])
    return out


def _masked(x: torch.Tensor) -> torch.Tensor:
    out = x.clone()
    out[out > 0] = -1.0
    return out


def _sliced(x: torch.Tensor) -> torch.Tensor:
    out = x.new_empty(x.shape)
    out[..., :3] = x[..., 5:]
    out[..., 3:] = x[..., :5]
    return out


def _strided(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    out[:, 0::2] = x[:, :4]
    out[:, 1::2] = -x[:, 4:]
    return out


def _selected(x: torch.Tensor) -> torch.Tensor:
    out = x * 1
    out[:, 2] = 5.0
    out[..., -1] = x[:, 0]
    return out


def _in_place(x: torch.Tensor) -> torch.Tensor:
    out = x + 1
    out *= 2
    out /= x.abs().sum(-1, keepdim=True)
    out[:, 1:].add_(1.0)
    return out


def _inverse(i: torch.Tensor) -> torch.Tensor:
    flat = i.reshape(-1)
    _, order = flat.sort(stable=True)
    out = torch.empty_like(order)
    out[order] = torch.arange(order.shape[0])
    return out // 2


@pytest.mark.parametrize("name", INDEX)
def test_index(check: Callable[..., Any], name: str) -> None:
    function, x, i = INDEX[name]
    check(function, x, i, tolerance=2e-6)
