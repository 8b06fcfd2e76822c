"""Norm rules: every spelling becomes the fused op, with equal numbers; near misses say why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from mixplan.passes.base import PassContext
from mixplan.passes.pipeline import default_passes

EPS = 1e-5
TOLERANCE = 2e-6
X = torch.randn(1, 7, 32, generator=torch.Generator().manual_seed(0))
W = torch.rand(32, generator=torch.Generator().manual_seed(1)) + 0.5
B = torch.randn(32, generator=torch.Generator().manual_seed(2))


def norm_passes() -> list[Any]:
    """The pipeline up to the norms."""
    passes = default_passes(PassContext().options)
    return passes[: next(i for i, one in enumerate(passes) if one.name == "fuse_norms") + 1]


def square_mean(x: Tensor) -> Tensor:
    return x.pow(2).mean(-1, keepdim=True)


RMS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "llama": lambda m, x: m.w * (x.to(torch.float32) * torch.rsqrt(x.to(torch.float32).pow(2).mean(-1, keepdim=True) + EPS)).to(x.dtype),
    "gemma": lambda m, x: (x * torch.rsqrt(square_mean(x) + EPS)) * (1.0 + m.w.float()),
    "eps first": lambda m, x: x * torch.rsqrt(EPS + (x * x).mean(-1, keepdim=True)) * m.w,
    "divided by sqrt": lambda m, x: x / torch.sqrt(square_mean(x) + EPS) * m.w,
    "power": lambda m, x: x * torch.pow(square_mean(x) + EPS, -0.5) * m.w,
    "sum": lambda m, x: m.w * (x * torch.rsqrt(x.square().sum(-1, keepdim=True) / 32 + EPS)),
    "aten": lambda m, x: torch.nn.functional.rms_norm(x, (32,), m.w, EPS),
}
LAYER: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "aten": lambda m, x: torch.nn.functional.layer_norm(x, (32,), m.w, m.b, EPS),
    "cohere": lambda m, x: (
        m.w * ((x - x.mean(-1, keepdim=True)) * torch.rsqrt((x - x.mean(-1, keepdim=True)).pow(2).mean(-1, keepdim=True) + EPS)) + m.b
    ),
    "variance": lambda m, x: m.b + m.w * ((x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + EPS)),
}


@pytest.mark.parametrize("name", RMS)
def test_rms_norm(from_function: Any, name: str) -> None:
    """One rms_norm with its weight is all that is left."""
    small = from_function(RMS[name], X, w=W)
    small.run(norm_passes())
    assert small.ops() == ["rms_norm"]
    assert small.difference() < TOLERANCE


@pytest.mark.parametrize("name", LAYER)
def test_layer_norm(from_function: Any, name: str) -> None:
    """One layer_norm with weight and bias is all that is left."""
    small = from_function(LAYER[name], X, w=W, b=B)
    small.run(norm_passes())
    assert small.ops() == ["layer_norm"]
    assert small.difference() < TOLERANCE


def test_l2_norm(from_function: Any) -> None:
    """x / |x| is rms_norm and a number."""
    small = from_function(lambda m, x: x * torch.rsqrt((x * x).sum(-1, keepdim=True) + EPS), X)
    small.run(norm_passes())
    assert small.ops() == ["rms_norm", "mul"]
    assert small.difference() < TOLERANCE


def test_heads_norm_keeps_shape(from_function: Any) -> None:
    """A norm over heads of 8 is fused over the last dimension."""
    small = from_function(lambda m, x: RMS["llama"](m, x.view(1, -1, 4, 8)), X, w=W[:8])
    small.run(norm_passes())
    assert small.ops() == ["reshape", "rms_norm"]
    assert small.difference() < TOLERANCE


MISSES: dict[str, tuple[Callable[[Any, Tensor], Tensor], str, str]] = {
    "another tensor": (
        lambda m, x: (x + 2) * torch.rsqrt(square_mean(x) + EPS),
        "rms_norm",
        "the mean square is that of inputs_0, but add",
    ),
    "another axis": (lambda m, x: x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + EPS), "rms_norm", "the mean is over dimensions [1]"),
    "no eps": (lambda m, x: x * torch.rsqrt(square_mean(x)), "rms_norm", "no constant eps"),
    "two users": (
        lambda m, x: (n := RMS["aten"](type("M", (), {"w": None}), x)) * m.w + n,
        "norm_weight",
        "is also used without the weight",
    ),
    "weight per head": (
        lambda m, x: torch.nn.functional.rms_norm(x.view(1, -1, 4, 8), (8,), None, EPS) * m.w.view(4, 8),
        "norm_weight",
        "the fused op takes one number for each of the last 8",
    ),
    "unbiased": (
        lambda m, x: (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True) + EPS),
        "variance_norm",
        "the unbiased one",
    ),
    "two dimensions": (
        lambda m, x: torch.nn.functional.layer_norm(x.view(1, -1, 4, 8), (4, 8)),
        "aten_layer_norm",
        "the last 2 dimensions",
    ),
}


@pytest.mark.parametrize("name", MISSES)
def test_near_miss(from_function: Any, name: str) -> None:
    """What keeps a norm from being fused is recorded with rule, node and reason, and the numbers stay."""
    function, rule, reason = MISSES[name]
    small, context = from_function(function, X, w=W), PassContext()
    small.run(norm_passes(), context)
    found = [str(rejection) for rejection in context.rejections.of(rule)]
    assert len(found) == 1 and reason in found[0], found
    assert small.difference() < TOLERANCE
