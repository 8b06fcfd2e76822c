"""The activations that a gated linear layer may carry, by name, with their torch meaning."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from mixplan.runtime.errors import InternalError

__all__ = ["ACTIVATIONS", "apply_activation"]


def _relu2(x: Tensor) -> Tensor:
    return functional.relu(x).square()


def _gelu_tanh(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": functional.relu,
    "relu2": _relu2,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


def apply_activation(name: str, x: Tensor) -> Tensor:
    """The activation called `name` of x, elementwise."""
    if name not in ACTIVATIONS:
        raise InternalError(f"Activation {name!r} is not known; allowed: {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[name](x)
