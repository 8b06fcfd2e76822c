"""Products, norms, complex rotations and what cannot be lowered: exported, lowered, run by the references, against torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from mixplan.runtime.errors import UnsupportedError

T = 5
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(T, 8, generator=GENERATOR)

LINEAR: dict[str, Callable[..., Any]] = {
    "linear": lambda m, x: functional.linear(x, m.weight),
    "linear bias": lambda m, x: functional.linear(x, m.weight, m.bias),
    "matmul by a parameter": lambda m, x: x @ m.weight.t(),
    "matmul by a transposed one": lambda m, x: x @ m.square,
    "addmm": lambda m, x: torch.addmm(m.scale, x, m.square),
    "addmm scaled": lambda m, x: torch.addmm(m.scale, x, m.square, beta=0.5, alpha=2.0),
    "bmm": lambda m, x: torch.bmm(x.reshape(-1, 2, 4), x.reshape(-1, 4, 2)),
    "matmul of two activations": lambda m, x: x.reshape(-1, 2, 4) @ x.reshape(-1, 4, 2),
    "matmul by a vector": lambda m, x: x @ m.scale,
    "merged weights": lambda m, x: functional.linear(x, torch.cat([m.weight, m.square]), torch.cat([m.bias, m.scale])),
    "weight plus one": lambda m, x: x * (1 + m.scale),
    "computed weight": lambda m, x: functional.linear(x, x[:1] * m.square),
    "layer_norm": lambda m, x: functional.layer_norm(x, (8,), m.scale, m.scale * 2, 1e-5),
    "layer_norm bare": lambda m, x: functional.layer_norm(x, (8,)),
    "layer_norm of two axes": lambda m, x: functional.layer_norm(x.reshape(-1, 2, 4), (2, 4)),
    "rms_norm": lambda m, x: functional.rms_norm(x, (8,), m.scale, 1e-6),
    "rms_norm without eps": lambda m, x: functional.rms_norm(x, (8,)),
}


@pytest.mark.parametrize("name", LINEAR)
def test_linear(check: Callable[..., Any], name: str) -> None:
    check(LINEAR[name], X, tolerance=1e-5)


def test_matmul_by_a_parameter_is_a_linear_layer(check: Callable[..., Any]) -> None:
    assert check(lambda m, x: x @ m.square, X, tolerance=1e-5) == ["linear"]


def _rotate(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    angle = torch.outer(torch.arange(x.shape[0]).float(), torch.tensor([1.0, 0.1, 0.01, 0.001]))
    turn = torch.polar(torch.ones_like(angle), angle)
    pairs = torch.view_as_complex(x.reshape(-1, 4, 2))
    return torch.view_as_real(pairs * turn).flatten(1)


def _complex_table(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    table = torch.polar(torch.ones(16, 4), torch.outer(torch.arange(16).float(), torch.tensor([1.0, 0.1, 0.01, 0.001])))
    turn = table[torch.arange(x.shape[0])]
    return torch.view_as_real(torch.view_as_complex(x.reshape(-1, 4, 2)) * turn.unsqueeze(0)[0]).reshape(-1, 8)


@pytest.mark.parametrize("function", [_rotate, _complex_table])
def test_complex_rotation(check: Callable[..., Any], function: Callable[..., Any]) -> None:
    check(function, X, tolerance=3e-6)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda m, x: x[:3], "a slice up to 3 of a dimension that a step of one token makes 1 long"),
        (lambda m, x: functional.conv1d(x.t()[None], m.square[:, :, None].expand(-1, -1, 3), padding=1), "a convolution over tokens"),
        (lambda m, x: x.cummax(-1)[0], "torch has no decomposition"),
        (lambda m, x: functional.dropout(x, 0.5, training=True), "dropout in training mode"),
        (lambda m, x: torch.linalg.vector_norm(x, 3, dim=-1), "a norm of order 3"),
    ],
)
def test_what_cannot_be_lowered_names_node_op_and_line(check: Callable[..., Any], function: Callable[..., Any], reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason) as caught:
        check(function, X)
    assert "Node " in str(caught.value) and "(aten." in str(caught.value) and "lowering_check.py:" in str(caught.value)
