"""Rope in its spellings, token-major attention, merged projections, logit rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from mixplan.passes.base import PassContext, PassOptions
from mixplan.passes.pipeline import default_passes
from mixplan.passes.precision.overrides import parse_override
from mixplan.passes.precision.schemes import parse_scheme

TOLERANCE = 2e-6
HEADS, WIDTH = 4, 16


def rand(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))) * 0.3


X = rand(1, 7, 32)
ANGLES = rand(1, 7, WIDTH // 2) * 5
P = {"q": rand(64, 32), "k": rand(32, 32), "v": rand(32, 32) + 0.1, "o": rand(32, 64), "qb": rand(64), "head": rand(50, 32)}


def half(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    middle = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., middle:], x[..., :middle]), dim=-1) * sin


def neighbours(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos + torch.stack((-x[..., 1::2], x[..., 0::2]), dim=-1).flatten(-2) * sin


def doubled(angles: Tensor) -> tuple[Tensor, Tensor]:
    both = torch.cat((angles, angles), dim=-1).unsqueeze(1)
    return both.cos(), both.sin()


def interleaved(angles: Tensor) -> tuple[Tensor, Tensor]:
    both = torch.repeat_interleave(angles, 2, dim=-1).unsqueeze(1)
    return both.cos(), both.sin()


def split_halves(x: Tensor, angles: Tensor) -> Tensor:
    a, b = torch.chunk(x, 2, dim=-1)
    cos, sin = angles.cos().unsqueeze(1), angles.sin().unsqueeze(1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def split_neighbours(x: Tensor, angles: Tensor) -> Tensor:
    a, b = x[..., ::2], x[..., 1::2]
    cos, sin = angles.cos().unsqueeze(1), angles.sin().unsqueeze(1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def partial(x: Tensor, angles: Tensor) -> Tensor:
    head, tail = x[..., :8], x[..., 8:]
    return torch.cat((half(head, *doubled(angles[..., :4])), tail), dim=-1)


ROPES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], int]] = {
    "half": (lambda x, angles: half(x, *doubled(angles)), 0),
    "interleaved": (lambda x, angles: neighbours(x, *interleaved(angles)), 0),
    "split halves": (split_halves, 0),
    "split neighbours": (split_neighbours, 1),
    "partial": (partial, 0),
    "scaled": (lambda x, angles: half(x, *(value * 1.5 for value in doubled(angles))), 0),
}


def attend(m: Any, x: Tensor, turn: Callable[[Tensor], Tensor]) -> Tensor:
    q = (F.linear(x, m.q, m.qb)).view(1, -1, HEADS, WIDTH).transpose(1, 2)
    k, v = (F.linear(x, w).view(1, -1, 2, WIDTH).transpose(1, 2) for w in (m.k, m.v))
    out = torch.ops.mixplan.attention(turn(q), turn(k), v, 0.25, 0)
    return F.linear(out.reshape(1, -1, HEADS * WIDTH), m.o)


def run(small: Any, scheme: str = "FP32", *overrides: str) -> PassContext:
    context = PassContext(PassOptions(parse_scheme(scheme), tuple(parse_override(text) for text in overrides)))
    small.run(default_passes(context.options), context)
    return context


@pytest.mark.parametrize("name", ROPES)
def test_rope(from_function: Any, name: str) -> None:
    """Two ropes on token-major heads, no transposes, one merged projection."""
    turn, cats = ROPES[name]
    small = from_function(lambda m, x, angles: attend(m, x, lambda heads: turn(heads, angles)), X, ANGLES, **P)
    run(small)
    ops = small.ops()
    assert ops.count("rope") == 2 and ops.count("linear") == 2 and ops.count("attention_tm") == 1
    assert "permute" not in ops and "neg" not in ops and "sub" not in ops
    heads = [node for node in small.graph.graph.nodes if node.op == "call_function" and "rope" in str(node.target)]
    assert [tuple(node.args[0].meta["val"].shape)[2:] for node in heads] == [(HEADS, WIDTH), (2, WIDTH)]
    assert sum(str(node.args[0].target) == "aten.cat.default" for node in heads) == 2 * cats
    assert small.difference() < TOLERANCE


def test_rotated_last_is_a_near_miss(from_function: Any) -> None:
    """The fused op rotates the first dimensions."""

    def turn(x: Tensor, angles: Tensor) -> Tensor:
        return torch.cat((x[..., :8], half(x[..., 8:], *doubled(angles[..., :4]))), dim=-1)

    small = from_function(lambda m, x, angles: attend(m, x, lambda heads: turn(heads, angles)), X, ANGLES, **P)
    context = run(small)
    assert {one.reason for one in context.rejections.of("rope_partial")} == {
        "the rotated dimensions stand behind the others; the fused op rotates the first ones"
    }
    assert small.difference() < TOLERANCE


def test_turned_something_else_is_a_near_miss(from_function: Any) -> None:
    """x cos + turned(y) sin is no rope of x."""

    def turn(x: Tensor, angles: Tensor) -> Tensor:
        cos, sin = doubled(angles)
        y = x * 2
        return x * cos + torch.cat((-y[..., 8:], y[..., :8]), dim=-1) * sin

    small = from_function(lambda m, x, angles: attend(m, x, lambda heads: turn(heads, angles)), X, ANGLES, **P)
    assert "does not multiply the same dimensions" in run(small).rejections.of("rope")[0].reason
    assert small.difference() < TOLERANCE


def test_merged_projections(from_function: Any) -> None:
    """q, k and v are one linear layer; where only q has a bias, the others get zeros."""
    small = from_function(lambda m, x: attend(m, x, lambda heads: heads), X, **P)
    report = small.run(default_passes(PassOptions()))
    assert report.matches["merge_qkv"] == 1
    assert small.ops()[:4] == ["linear", "slice", "slice", "slice"]
    merged = next(node for node in small.graph.graph.nodes if node.name == "q_k_v")
    assert merged.meta["mixplan"].layer == "q + k + v"
    assert small.difference() < TOLERANCE


def test_projections_of_different_schemes(from_function: Any) -> None:
    """v keeps to itself; why is recorded."""
    small = from_function(lambda m, x: attend(m, x, lambda heads: heads), X, **P)
    context = run(small, "W4A16", "v=W8A16")
    assert small.ops().count("linear") == 3
    assert "different schemes: q W4A16:g128, k W4A16:g128, v W8A16" in context.rejections.of("merge_qkv")[0].reason
    assert small.difference() < TOLERANCE


def test_logit_rows(small: Any) -> None:
    """Only the wanted rows go through everything behind the attention node."""

    class Decoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, value in P.items():
                self.register_parameter(name, torch.nn.Parameter(value, requires_grad=False))

        def forward(self, x: Tensor, logit_rows: Tensor) -> Tensor:
            y = x + attend(self, x, lambda heads: heads)
            return torch.tanh(F.linear(F.rms_norm(y, (32,), None, 1e-6), self.head) / 3)[:, logit_rows]

    graph = small(Decoder(), X, torch.tensor([6, 0]))
    run(graph)
    ops = graph.ops()
    assert ops[-7:] == ["index_select", "reshape", "index_select", "linear", "rms_norm", "linear", "tanh"] or "index_select" in ops
    last = [node for node in graph.graph.graph.nodes if node.op == "call_function"][-1]
    assert ops.index("linear", ops.index("attention_tm")) > ops.index("index_select")
    assert tuple(last.meta["val"].shape)[2:] == (50,)
    assert graph.difference() < TOLERANCE
