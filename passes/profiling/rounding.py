"""How much of an activation is left after rounding it to 8 bits, with scales of several reaches."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["GRANULARITIES", "rounding_snr"]

GRANULARITIES: dict[str, int | None] = {"tensor": None, "token": 0, "group": 32}
"""Name -> columns that share a scale: all of the tensor, a row, a group of a row."""
_LEVELS = 127.0


def rounding_snr(x: Tensor) -> dict[str, float]:
    """Signal to noise in dB of x f32 [n, K] rounded to symmetric int8 with dynamic scales, by name of the granularity.

    SNR = 10 log10(sum x^2 / sum (x - scale * round(x / scale))^2), scale = largest magnitude / 127. Infinite where nothing is lost, nan
    for what is all zero.
    """
    power = float(x.double().square().sum())
    found = {}
    for name, columns in GRANULARITIES.items():
        parts = x.reshape(1, -1) if columns is None else x
        if columns:
            missing = -x.shape[-1] % columns
            parts = torch.nn.functional.pad(x, (0, missing)).reshape(-1, columns)
        scale = parts.abs().amax(-1, keepdim=True) / _LEVELS
        error = parts - torch.round(parts / torch.where(scale == 0, torch.ones_like(scale), scale)) * scale
        noise = float(error.double().square().sum())
        found[name] = math.nan if power == 0 else math.inf if noise == 0 else 10 * math.log10(power / noise)
    return found
