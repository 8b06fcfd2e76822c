"""The canonical form: which ops are left of each spelling, with equal numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from mixplan.passes.base import PassContext, PassOptions
from mixplan.passes.manager import PassManager
from mixplan.passes.pipeline import LEVELS, default_passes
from mixplan.runtime.errors import UnsupportedError

X = torch.randn(1, 7, 32, generator=torch.Generator().manual_seed(0))
W = torch.randn(32, generator=torch.Generator().manual_seed(1))


def written(m: Any, x: Tensor) -> Tensor:
    y = torch.empty(1, x.shape[1], 32)
    y[..., :8] = x[..., :8]
    y[..., 8:] = x[..., 8:] * 2
    return y


def seen_through_a_view(m: Any, x: Tensor) -> Tensor:
    y = x * 2
    half = y[..., :16]
    y.mul_(3)
    return torch.cat([half, y], -1)


def selected(m: Any, x: Tensor) -> Tensor:
    y = x.clone()
    y[:, :, 3] = 0.0
    return y


def transposed_view(m: Any, x: Tensor) -> Tensor:
    y = x + 1
    y.transpose(1, 2).add_(2)
    return y.sin()


FORMS: dict[str, tuple[Callable[[Any, Tensor], Tensor], list[str]]] = {
    "casts": (lambda m, x: x.to(torch.float32).float().type_as(x).sin().to(torch.float32), ["sin"]),
    "neutral numbers": (lambda m, x: ((x * 1.0 + 0.0) / 1.0).sin(), ["sin"]),
    "dropout and copies": (lambda m, x: torch.nn.functional.dropout(x.contiguous().clone().detach(), 0.5, False).sin(), ["sin"]),
    "alpha": (lambda m, x: torch.add(x, x.sin(), alpha=2), ["sin", "mul", "add"]),
    "views": (lambda m, x: x.view(1, -1, 4, 8).flatten(2).unsqueeze(0).squeeze(0).sin(), ["sin"]),
    "transposes": (lambda m, x: x.transpose(1, 2).permute(0, 2, 1).mT.mT.sin(), ["sin"]),
    "transpose of size 1": (lambda m, x: x.transpose(0, 1).sin(), ["reshape", "sin"]),
    "split": (lambda m, x: (p := x.split([8, 24], -1))[0].sum(-1) + p[1].sum(-1), ["slice", "slice", "sum", "sum", "add"]),
    "chunk": (lambda m, x: (p := x.chunk(2, dim=-1))[0] * p[1], ["slice", "slice", "mul"]),
    "unbind": (lambda m, x: x.view(1, -1, 2, 16).unbind(2)[1], ["reshape", "slice", "reshape"]),
    "select": (lambda m, x: x[..., -1], ["slice", "reshape"]),
    "slice of slice": (lambda m, x: x[..., 8:][..., :8], ["slice"]),
    "slice of cat": (lambda m, x: torch.cat([x.sin(), x.cos()], -1)[..., 40:], ["cos", "slice"]),
    "stack": (lambda m, x: torch.stack([x, x.sin()], -1).flatten(-2), ["sin", "reshape", "reshape", "cat", "reshape"]),
    "repeat_interleave": (lambda m, x: x.repeat_interleave(2, -1), ["reshape", "expand", "reshape"]),
    "common": (lambda m, x: x.sin() + x.sin(), ["sin", "add"]),
    "dead": (lambda m, x: (x.cos(), x.sin())[1], ["sin"]),
    "silu": (lambda m, x: (y := x.sin()) * torch.sigmoid(y), ["sin", "silu"]),
    "in place": (lambda m, x: x.sin().add_(1).mul_(x), ["sin", "add", "mul"]),
    "written slices": (written, ["slice", "slice", "mul", "cat"]),
    "view of what is changed": (seen_through_a_view, ["mul", "mul", "slice", "cat"]),
    "written column": (selected, []),
    "changed through a transpose": (transposed_view, []),
    "masked_fill_": (lambda m, x: x.sin().masked_fill_(x > 0, 2.0), ["sin", "gt", "masked_fill"]),
    "unknown table": (lambda m, x: torch.nn.functional.linear(x, x[0]), ["reshape", "permute", "matmul"]),
}


def canonical() -> list[Any]:
    passes = default_passes(PassOptions())
    return passes[: next(i for i, one in enumerate(passes) if one.name == "canonical_form") + 1]


@pytest.mark.parametrize("name", FORMS)
def test_form(from_function: Any, name: str) -> None:
    """An empty list leaves the ops open: then the spec and the numbers decide."""
    function, expected = FORMS[name]
    small = from_function(function, X, w=W)
    PassManager(canonical(), LEVELS).run(small.graph, PassContext())
    if expected:
        assert small.ops() == expected
    assert small.difference() < 1e-6


def test_small_constants_are_folded(from_function: Any) -> None:
    """Frequencies and scales become tensors and numbers; parameters are never read."""

    def function(m: Any, x: Tensor) -> Tensor:
        frequencies = 1.0 / (100 ** (torch.arange(0, 32, 2).float() / 32))
        return x * torch.cat([frequencies, frequencies]) * m.buffer_scale * (m.w + 1.0)

    small = from_function(function, X, w=W, buffer_scale=torch.tensor(2.5))
    PassManager(canonical(), LEVELS).run(small.graph, PassContext())
    assert small.ops() == ["mul", "mul", "mul"]
    factors = [node.args[1] for node in small.graph.graph.nodes if str(node.target) == "aten.mul.Tensor"]
    assert factors[0].op == "get_attr" and factors[1] == 2.5 and str(factors[2].target) == "aten.add.Tensor"
    assert small.difference() < 1e-6


def test_large_constants_are_not_made(from_function: Any) -> None:
    """A mask of 256 x 256 stays a computation."""
    small = from_function(lambda m, x: x.sum() * torch.ones(256, 256).tril(), X)
    PassManager(canonical(), LEVELS).run(small.graph, PassContext())
    assert "tril" in [node.target._schema.name.split("::")[1] for node in small.graph.graph.nodes if node.op == "call_function"]


def test_random_in_place_op(from_function: Any) -> None:
    """An in-place op without a functional counterpart is named."""
    small = from_function(lambda m, x: x.sin().uniform_(), X)
    with pytest.raises(UnsupportedError, match=r"The in-place op aten\.uniform_\.default at node uniform_ .* no functional counterpart"):
        PassManager(canonical(), LEVELS).run(small.graph, PassContext())


def test_origins_name_the_captured_node(from_function: Any) -> None:
    """A node that computes a captured node's value says which; one that does not says nothing."""
    small = from_function(lambda m, x: x.view(-1, 32).sin().view(1, -1, 32).cos(), X)
    captured = {node.name for node in small.graph.graph.nodes}
    PassManager(canonical(), LEVELS).run(small.graph, PassContext())
    origins = [node.meta.get("origin") for node in small.graph.graph.nodes if node.op == "call_function"]
    assert origins[-1] == "cos" and {origin for origin in origins if origin} <= captured


def test_without_canonical_form(from_function: Any) -> None:
    """An op that stays outside the canonical form is the model's, and named with its source line."""
    small = from_function(lambda m, x: x.narrow(1, 0, x.shape[1]), X)
    with pytest.raises(UnsupportedError, match=r"Node narrow \(File .*\) has no canonical form: aten\.narrow\.default is not part of"):
        PassManager(canonical(), LEVELS).run(small.graph, PassContext())
