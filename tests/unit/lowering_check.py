"""A one-op module exported with a dynamic T, lowered, run by the references, against torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from mixplan.compiler.evaluate import evaluate, lower_module

T = 5


class OneOp(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        generator = torch.Generator().manual_seed(1)
        self.weight = nn.Parameter(torch.randn(6, 8, generator=generator))
        self.square = nn.Parameter(torch.randn(8, 8, generator=generator))
        self.bias = nn.Parameter(torch.randn(6, generator=generator))
        self.scale = nn.Parameter(torch.randn(8, generator=generator))

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(self, *args)


class _Two(OneOp):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> Any:  # type: ignore[override]  # each case has arguments of its own
        return self.function(self, a, b)


class _One(OneOp):
    def forward(self, a: torch.Tensor) -> Any:  # type: ignore[override]  # each case has arguments of its own
        return self.function(self, a)


def check(
    function: Callable[..., Any], *args: torch.Tensor, axes: tuple[int | None, ...] | None = None, tolerance: float = 1e-6
) -> list[str]:
    """Compare at the example's size and at another T; gives the plan's ops."""
    module = (_One, _Two)[len(args) - 1](function).eval()
    dynamic = axes or tuple(0 for _ in args)
    lowered, constants, names = lower_module(module, args, dynamic)
    for tokens in (T, 9):
        given = [a if axis is None else _resized(a, axis, tokens) for a, axis in zip(args, dynamic, strict=True)]
        inputs = {name: a.numpy() for name, a in zip(names, given, strict=True)}
        with torch.no_grad():
            wanted = module(*given)
        wanted = wanted if isinstance(wanted, (tuple, list)) else [wanted]
        got = evaluate(lowered, constants, inputs, tokens=tokens)
        assert len(got) == len(wanted)
        for g, w in zip(got, wanted, strict=True):
            assert g.shape == tuple(w.shape)
            if w.is_floating_point():
                np.testing.assert_allclose(g, w.detach().float().numpy(), rtol=tolerance, atol=tolerance)
            else:
                np.testing.assert_array_equal(g, w.numpy())
    return [node.op for node in lowered.nodes]


def _resized(x: torch.Tensor, axis: int, size: int) -> torch.Tensor:
    repeats = [1] * x.dim()
    repeats[axis] = -(-size // x.shape[axis])
    return x.repeat(*repeats).narrow(axis, 0, size).clone()
