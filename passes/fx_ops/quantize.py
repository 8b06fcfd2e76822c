"""`mixplan::quantize_act`: dynamic symmetric int8 quantization of activations, per row and group of columns."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from mixplan.passes.fx_ops.register import define

__all__ = ["CHANNEL_PAD", "QUANTIZE_ACT", "dequantize", "fake", "padded", "quantize_act"]

CHANNEL_PAD = 32
"""Columns are padded to a multiple of this where one scale covers a whole row."""


def padded(columns: int, group: int) -> int:
    """Columns of the quantized tensor: up to a multiple of the group, or of CHANNEL_PAD for group 0."""
    step = group or CHANNEL_PAD
    return -(-columns // step) * step


def quantize_act(x: Tensor, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """x [..., K] -> q i8 [..., Kp], scales f32 [..., G], sums f32 [..., G]; group 0 is the whole row, so G = 1.

    scale = absmax / 127 (1 for a row of zeros), q = round-half-even(x / scale) within [-127, 127], sums = scale * sum(q).
    """
    width = padded(x.shape[-1], group)
    x = functional.pad(x.float(), (0, width - x.shape[-1]))
    grouped = x.unflatten(-1, (-1, group or width))
    scales = grouped.abs().amax(-1) / 127
    scales = torch.where(scales == 0, torch.ones_like(scales), scales)
    q = torch.round(grouped / scales.unsqueeze(-1)).clamp(-127, 127)
    return q.flatten(-2).to(torch.int8), scales, scales * q.sum(-1)


def dequantize(q: Tensor, scales: Tensor, columns: int) -> Tensor:
    """q i8 [..., Kp] and scales [..., G] -> f32 [..., columns]."""
    grouped = q.float().unflatten(-1, (scales.shape[-1], -1))
    return (grouped * scales.unsqueeze(-1)).flatten(-2)[..., :columns]


def fake(x: Tensor, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """Shapes and dtypes of quantize_act(x, group)."""
    width = padded(x.shape[-1], group)
    groups = width // (group or width)
    scales = x.new_empty((*x.shape[:-1], groups), dtype=torch.float32)
    return x.new_empty((*x.shape[:-1], width), dtype=torch.int8), scales, torch.empty_like(scales)


QUANTIZE_ACT = define("quantize_act", quantize_act, fake)
