"""Weights and activations rounded as a plan rounds them, in torch, with gradients that pass straight through."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from mixplan.compiler.calibration.statistics import InputStatistics
from mixplan.compiler.quantize import dequantized
from mixplan.passes.precision.schemes import Scheme
from mixplan.runtime.float8 import LARGEST

__all__ = ["WeightCache", "rounded_input"]

_LARGEST_CODE = 127.0
_LEAST = 2.0**-100
# Rows quantized at a time, by their elements.
_ELEMENTS = 1 << 22


class _Through(torch.autograd.Function):
    """`rounded` in place of `x`; the gradient goes to x as it is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rounded: Tensor) -> Tensor:
        return rounded.view_as(rounded)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


class WeightCache:
    """Rounded weights by parameter and scheme. A parameter that was written to (its version or memory changed) is quantized again."""

    def __init__(self) -> None:
        self._made: Any = WeakIdKeyDictionary()
        self.quantized = 0
        """How many weights were quantized so far."""

    def rounded(self, weight: Tensor, scheme: Scheme, name: str, moments: Tensor | None = None) -> Tensor:
        """The weight as it comes back from the scheme's format, in its own dtype. CheckpointError where it is not finite."""
        state = (None if weight.is_inference() else weight._version, weight.data_ptr(), weight.dtype, weight.device)
        known = self._made.setdefault(weight, {})
        found = known.get(scheme)
        if found is None or found[0] != state or found[1] is not moments:
            with torch.no_grad():
                found = known[scheme] = (state, moments, _quantized(weight, scheme, name, moments))
            self.quantized += 1
        through: Tensor = _Through.apply(weight, found[2])
        return through


def _quantized(weight: Tensor, scheme: Scheme, name: str, moments: Tensor | None) -> Tensor:
    inputs = None if moments is None or scheme.weight.bits >= 8 else InputStatistics(moments)
    step = max(_ELEMENTS // weight.shape[1], 1)
    rows = weight.detach().cpu().float()
    parts = [dequantized(scheme.weight, rows[at : at + step], name, inputs) for at in range(0, len(rows), step)]
    return torch.cat(parts).to(weight.device, weight.dtype)


def rounded_input(x: Tensor, scheme: Scheme) -> Tensor:
    """A layer's input x [.., K] rounded as the scheme says: to int8 by row and group, to e4m3 by row, to bfloat16, or not at all."""
    if scheme.activation == "f32":
        return x
    with torch.no_grad():
        if scheme.activation == "bf16":
            rounded = x.bfloat16().to(x.dtype)
        else:
            rounded = _e4m3(x) if scheme.activation == "e4m3" else _int8(x, scheme.group)
    through: Tensor = _Through.apply(x, rounded)
    return through


def _e4m3(x: Tensor) -> Tensor:
    """scale * e4m3(x / scale) with scale = largest magnitude / 448 of each row."""
    wide = x.float()
    largest = wide.abs().amax(-1, keepdim=True)
    scale = torch.where(largest < _LEAST, torch.ones_like(largest), largest / LARGEST)
    codes = (wide * (1.0 / scale)).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
    return (codes.float() * scale).to(x.dtype)


def _int8(x: Tensor, group: int) -> Tensor:
    """scale * round(x / scale) with scale = largest magnitude / 127 of each row and group of `group` columns (0: the row)."""
    columns = x.shape[-1]
    size = group or columns
    wide = torch.nn.functional.pad(x.float(), (0, -columns % size)).unflatten(-1, (-1, size))
    largest = wide.abs().amax(-1, keepdim=True)
    scale = torch.where(largest < _LEAST, torch.ones_like(largest), largest / _LARGEST_CODE)
    codes = (wide * (1.0 / scale)).round().clamp(-_LARGEST_CODE, _LARGEST_CODE)
    return (codes * scale).flatten(-2)[..., :columns].to(x.dtype)
