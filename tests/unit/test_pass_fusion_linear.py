"""Rules around linear layers: bias, scale, gate, residual, quantized activations, experts. Matches, near misses, numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from mixplan.passes.base import PassContext, PassOptions
from mixplan.passes.decision import decision_of
from mixplan.passes.pipeline import default_passes
from mixplan.passes.precision.overrides import parse_override
from mixplan.passes.precision.schemes import parse_scheme

TOLERANCE = 2e-6


def rand(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))) * 0.3


X = rand(1, 7, 32)
P = {"gate": rand(48, 32), "up": rand(48, 32) + 0.1, "down": rand(32, 48), "b": rand(48), "both": rand(96, 32), "norm": rand(32) + 1.0}


def run(small: Any, scheme: str = "FP32", *overrides: str) -> PassContext:
    """The whole pipeline under a scheme."""
    context = PassContext(PassOptions(parse_scheme(scheme), tuple(parse_override(text) for text in overrides)))
    small.run(default_passes(context.options), context)
    return context


FUSED: dict[str, tuple[Callable[[Any, Tensor], Tensor], list[str]]] = {
    "bias": (lambda m, x: F.linear(x, m.up) + m.b, ["linear"]),
    "addmm": (lambda m, x: torch.addmm(m.b, x.view(-1, 32), m.up.t()).view(1, -1, 48), ["linear"]),
    "matmul": (lambda m, x: torch.matmul(x, m.up.t()), ["linear"]),
    "scale": (lambda m, x: F.linear(x, m.up, m.b) * 0.25, ["linear"]),
    "divided": (lambda m, x: F.linear(x, m.up, m.b) / 4.0, ["linear"]),
    "residual": (lambda m, x: x + F.linear(F.relu(F.linear(x, m.up)), m.down), ["linear", "relu", "linear"]),
    "residual, other order": (lambda m, x: F.linear(F.relu(F.linear(x, m.up)), m.down) + x, ["linear", "relu", "linear"]),
    "silu": (lambda m, x: F.silu(F.linear(x, m.gate)) * F.linear(x, m.up), ["gated_linear"]),
    "silu spelled": (lambda m, x: F.linear(x, m.up) * ((g := F.linear(x, m.gate)) * torch.sigmoid(g)), ["gated_linear"]),
    "gelu": (lambda m, x: F.gelu(F.linear(x, m.gate, m.b)) * F.linear(x, m.up), ["gated_linear"]),
    "gelu tanh": (lambda m, x: F.gelu(F.linear(x, m.gate), approximate="tanh") * F.linear(x, m.up), ["gated_linear"]),
    "relu squared": (lambda m, x: F.relu(F.linear(x, m.gate)).square() * F.linear(x, m.up), ["gated_linear"]),
    "merged, chunked": (lambda m, x: (c := F.linear(x, m.both).chunk(2, -1))[1] * F.silu(c[0]), ["gated_linear"]),
    "flattened": (
        lambda m, x: (F.silu(F.linear(x.view(-1, 32), m.gate)) * F.linear(x.view(-1, 32), m.up)).view(1, -1, 48),
        ["gated_linear"],
    ),
    "gelu in arithmetic": (
        lambda m, x: 0.5 * (y := F.linear(x, m.up)) * (1.0 + torch.tanh((2 / torch.pi) ** 0.5 * (y + 0.044715 * torch.pow(y, 3.0)))),
        ["linear", "gelu"],
    ),
    "gelu in products": (
        lambda m, x: (y := F.linear(x, m.up)) * 0.5 * (1.0 + torch.tanh(0.7978845608 * y * (1 + 0.044715 * y * y))),
        ["linear", "gelu"],
    ),
    "gelu by erf": (lambda m, x: (y := F.linear(x, m.up)) * 0.5 * (1.0 + torch.erf(y / 2**0.5)), ["linear", "gelu"]),
}


@pytest.mark.parametrize("name", FUSED)
def test_fused(from_function: Any, name: str) -> None:
    """Exactly these ops are left, with equal numbers, and every weight op carries its decision."""
    function, expected = FUSED[name]
    small = from_function(function, X, **P)
    run(small)
    assert small.ops() == expected
    assert small.difference() < TOLERANCE
    weighted = [node for node in small.graph.graph.nodes if "linear" in str(node.target)]
    assert all(decision_of(node) is not None and "rule" in node.meta for node in weighted)


MISSES: dict[str, tuple[Callable[[Any, Tensor], Tensor], str, str]] = {
    "bias used twice": (lambda m, x: (y := F.linear(x, m.up)) * (y + m.b), "bias", "is also used without the bias"),
    "bias of one number": (lambda m, x: F.linear(x, m.up) + m.b[:1], "bias", "not [48]"),
    "scaled, shared weight": (lambda m, x: F.linear(x, m.up) * 2.0 + F.linear(x + 1, m.up), "scale", "is read by another layer"),
    "scaled, also unscaled": (lambda m, x: (y := F.linear(x, m.up)) * 2.0 + y.sin(), "scale", "is also used unscaled"),
    "gate of another input": (lambda m, x: F.silu(F.linear(x, m.gate)) * F.linear(x + 1, m.up), "gated", "different inputs"),
    "gate used twice": (lambda m, x: (g := F.silu(F.linear(x, m.gate))) * F.linear(x, m.up) + g, "gated", "has other users"),
    "residual used twice": (lambda m, x: (y := F.linear(x, m.both[:32])) + x + y.sin(), "residual", "is also used without the residual"),
    "residual of one row": (lambda m, x: F.linear(x, m.up) + x[:, :1, :1], "residual", "has shape"),
}


@pytest.mark.parametrize("name", MISSES)
def test_near_miss(from_function: Any, name: str) -> None:
    """The reason is recorded, and the numbers stay."""
    function, rule, reason = MISSES[name]
    small = from_function(function, X, **P)
    context = run(small)
    found = [str(rejection) for rejection in context.rejections.of(rule)]
    assert any(reason in text for text in found), found
    assert small.difference() < TOLERANCE


def mlp(m: Any, x: Tensor) -> Tensor:
    y = F.rms_norm(x, (32,), m.norm, 1e-6)
    return x + F.linear(F.silu(F.linear(y, m.gate)) * F.linear(y, m.up), m.down)


def test_different_schemes_are_not_joined(from_function: Any) -> None:
    """Gate and up of different schemes stay apart."""
    small = from_function(mlp, X, **P)
    context = run(small, "W4A16:g32", "up=W8A16")
    assert small.ops() == ["rms_norm", "linear", "silu", "linear", "mul", "linear"]
    assert "different schemes, W4A16:g32 and W8A16" in str(context.rejections.of("gated")[0])


@pytest.mark.parametrize(("scheme", "limit"), [("W8A8", 0.02), ("W4A8:g32", 0.02)])
def test_quantized_activations(from_function: Any, scheme: str, limit: float) -> None:
    """The norm writes int8, the product's input is quantized once, and only rounding separates the numbers."""
    small = from_function(mlp, X, **P)
    run(small, scheme)
    parts = ["getitem"] * 3
    assert small.ops() == ["rms_norm_quant", *parts, "gated_linear_q", "quantize_act", *parts, "linear_q"]
    assert 0 < small.difference() < limit


def test_norm_with_a_plain_user_is_not_quantized(from_function: Any) -> None:
    """One quantization for the layers of one group; a norm that is also wanted in float stays one."""

    def function(m: Any, x: Tensor) -> Tensor:
        y = F.rms_norm(x, (32,), m.norm, 1e-6)
        return torch.cat([F.linear(y, m.gate), F.linear(y, m.up), y.sin()], -1)

    small = from_function(function, X, **P)
    context = run(small, "W8A8")
    assert small.ops().count("quantize_act") == 1 and small.ops().count("linear_q") == 2
    assert "is also used unquantized, by sin" in str(context.rejections.of("quantize_norm")[0])
    small = from_function(mlp, X, **P)
    context = run(small, "W4A8:g32", "up=W4A8:g64")
    assert "several group sizes, [32, 64]" in str(context.rejections.of("quantize_norm")[0])


def test_experts(from_function: Any) -> None:
    """Alternating gate and up rows are sorted in the weight; the gate itself stays, and that is recorded."""

    def function(m: Any, x: Tensor, ids: Tensor) -> Tensor:
        y = torch.ops.mixplan.grouped_linear(x.view(-1, 1, 32), ids, m.experts, m.bias)
        return torch.ops.mixplan.grouped_linear(F.silu(y[..., ::2]) * y[..., 1::2], ids, m.back).sum(1)

    ids = torch.tensor([[0, 1]] * 7)
    small = from_function(function, X, ids, experts=rand(3, 24, 32), bias=rand(3, 24), back=rand(3, 32, 12))
    context = run(small, "W4A8")
    assert small.ops() == ["reshape", "grouped_linear", "slice", "slice", "silu", "mul", "grouped_linear", "sum"]
    assert small.difference() < TOLERANCE
    assert "stay elementwise" in str(context.rejections.of("expert_gate")[0])
    assert "their input stays f32" in str(context.rejections.of("quantize_activation")[0])
