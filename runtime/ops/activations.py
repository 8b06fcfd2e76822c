"""Activation functions of the numpy references, and the table of those that a gated linear may name."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from mixplan.runtime.errors import PlanError
from mixplan.runtime.ops.base import Array

__all__ = ["ACTIVATIONS", "activation", "erf", "gelu", "gelu_tanh", "relu", "sigmoid", "silu"]

_STEPS = 256  # table nodes per unit of x
_LIMIT = 6  # erf is 1 to within 3e-17 from here on


@lru_cache(maxsize=1)
def _erf_nodes() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """erf and its derivative times the node distance, at x = i / 256 up to 6."""
    x = np.arange(_LIMIT * _STEPS + 1) / _STEPS
    values = np.array([math.erf(v) for v in x.tolist()])
    return values, 2 / math.sqrt(math.pi) * np.exp(-x * x) / _STEPS


def _erf64(x: Array) -> NDArray[np.float64]:
    """erf in float64, to 1e-11: cubic Hermite interpolation between tabulated values and (known) derivatives."""
    values, slopes = _erf_nodes()
    size = np.minimum(np.abs(np.asarray(x, np.float64)), _LIMIT) * _STEPS
    node = np.clip(np.nan_to_num(size), 0, _LIMIT * _STEPS - 1).astype(np.int64)
    t = size - node
    low, high = values[node], values[node + 1]
    out = low + t * (slopes[node] + t * (3 * (high - low) - 2 * slopes[node] - slopes[node + 1]))
    out += t * t * t * (2 * (low - high) + slopes[node] + slopes[node + 1])
    return np.asarray(np.copysign(out, x))


def erf(x: Array) -> Array:
    """The error function, f32 (any shape), rounded from float64."""
    return _erf64(x).astype(np.float32)


def gelu(x: Array) -> Array:
    """x/2 * (1 + erf(x / sqrt 2)), rounded from float64."""
    wide = np.asarray(x, np.float64)
    return np.asarray(wide * 0.5 * (1.0 + _erf64(wide / math.sqrt(2.0))), np.float32)


def gelu_tanh(x: Array) -> Array:
    """The tanh approximation of gelu (Hendrycks and Gimpel, arXiv:1606.08415)."""
    inner = np.float32(math.sqrt(2.0 / math.pi)) * (x + np.float32(0.044715) * x * x * x)
    return np.asarray(np.float32(0.5) * x * (np.float32(1) + np.tanh(inner)))


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x))."""
    return np.float32(1) / (np.float32(1) + np.exp(-x))


def silu(x: Array) -> Array:
    """x * sigmoid(x)."""
    return x / (np.float32(1) + np.exp(-x))


def relu(x: Array) -> Array:
    """max(x, 0)."""
    return np.asarray(np.maximum(x, x.dtype.type(0)))


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": silu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "relu": relu,
    "sigmoid": sigmoid,
    "relu2": lambda x: np.square(relu(x)),
    "tanh": np.tanh,
}
"""What `gated_linear` may apply to its gate, by name."""


def activation(op: str, name: object) -> Callable[[Array], Array]:
    """The activation called `name`; PlanError where there is none."""
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise PlanError(f"Op {op}: activation {name!r} is not known; allowed: {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[name]
