"""Ops that change shapes or make tensors: exported with a dynamic T, lowered, run by the references, against torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

T = 5
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(T, 8, generator=GENERATOR)
CUBE = torch.randn(T, 3, 8, generator=GENERATOR)

SHAPE: dict[str, Callable[..., Any]] = {
    "view": lambda x: x.view(x.shape[0], 2, 12),
    "reshape -1": lambda x: x.reshape(-1, 8),
    "flatten": lambda x: x.flatten(1),
    "unflatten": lambda x: x.unflatten(-1, (2, 4)),
    "transpose": lambda x: x.transpose(0, 1),
    "permute": lambda x: x.permute(2, 0, 1),
    "movedim": lambda x: x.movedim(0, -1),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "squeeze": lambda x: x[:, :1].squeeze(1),
    "expand": lambda x: x[:, :1].expand(-1, 4, -1),
    "expand new axis": lambda x: x.expand(2, -1, -1, -1),
    "expand_as": lambda x: x[:, :1].expand_as(x),
    "slice": lambda x: x[:, 1:],
    "slice strided": lambda x: x[..., 1::2],
    "slice negative": lambda x: x[..., -3:-1],
    "slice tokens": lambda x: x[1:],
    "last token": lambda x: x[-1:],
    "all but the last": lambda x: x[:-1],
    "select": lambda x: x[:, 1],
    "select last": lambda x: x[..., -1],
    "select last token": lambda x: x[-1],
    "cat": lambda x: torch.cat([x, x[:, :1]], 1),
    "cat tokens": lambda x: torch.cat([x, x[:1]], 0),
    "cat mixed dtypes": lambda x: torch.cat([x, (x > 0).long()], -1),
    "stack": lambda x: torch.stack([x, -x], -1),
    "split": lambda x: x.split(3, -1),
    "split sizes": lambda x: x.split([5, 1, 2], -1),
    "chunk": lambda x: x.chunk(3, -1),
    "unbind": lambda x: x.unbind(1),
    "repeat_interleave": lambda x: x.repeat_interleave(2, dim=-1),
    "repeat_interleave tokens": lambda x: x.repeat_interleave(3, dim=0),
    "repeat": lambda x: x.repeat(1, 2, 1),
    "repeat tokens": lambda x: x.repeat(2, 1, 1),
    "flip": lambda x: x.flip(-1),
    "roll": lambda x: x.roll(1, -1),
    "pad": lambda x: functional.pad(x, (1, 2), value=0.5),
    "pad tokens": lambda x: functional.pad(x, (0, 0, 0, 0, 1, 0)),
    "pad negative": lambda x: functional.pad(x, (-1, 0)),
    "tril": lambda x: x.tril(1),
    "triu": lambda x: x.triu(),
    "narrow": lambda x: x.narrow(-1, 2, 3),
    "view_as": lambda x: x.view_as(x) + 1,
    "t": lambda x: x[:, 0].t(),
    "einsum": lambda x: torch.einsum("tij,tkj->tik", x, x),
}


@pytest.mark.parametrize("name", SHAPE)
def test_shape(check: Callable[..., Any], name: str) -> None:
    check(lambda m, x: SHAPE[name](x), CUBE, tolerance=3e-6)


CREATE: dict[str, Callable[..., Any]] = {
    "arange": lambda x: torch.arange(x.shape[0]),
    "arange scaled": lambda x: torch.arange(3, 2 * x.shape[0] + 3, 2),
    "arange float": lambda x: torch.arange(x.shape[0], dtype=torch.float32) * 0.5,
    "arange static": lambda x: x + torch.arange(8),
    "arange times": lambda x: torch.arange(2 * x.shape[0]),
    "zeros": lambda x: torch.zeros(x.shape[0], 4) + x[:, :4],
    "ones_like": lambda x: torch.ones_like(x) * x,
    "full": lambda x: torch.full((x.shape[0], 2), 7, dtype=torch.int64),
    "full_like": lambda x: torch.full_like(x, 2.5),
    "new_zeros": lambda x: x.new_zeros((x.shape[0], 3)),
    "new_full": lambda x: x.new_full((2, 2), 3.0) + x[0, 0],
    "scalar_tensor": lambda x: x + torch.tensor(2.5),
    "tensor of a list": lambda x: x[:, :3] * torch.tensor([1.0, 2.0, 3.0]),
    "linspace folded": lambda x: x + torch.linspace(0, 1, 8),
    "positions times frequencies": lambda x: torch.outer(torch.arange(x.shape[0]).float(), 1.0 / 10 ** (torch.arange(4) / 4)),
}


@pytest.mark.parametrize("name", CREATE)
def test_create(check: Callable[..., Any], name: str) -> None:
    check(lambda m, x: CREATE[name](x), X, tolerance=2e-6)
