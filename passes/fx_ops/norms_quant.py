"""Norms whose output is only wanted quantized: `mixplan::rms_norm_quant` and `mixplan::layer_norm_quant`."""

from __future__ import annotations

from torch import Tensor

from mixplan.passes.fx_ops import quantize
from mixplan.passes.fx_ops.norms import layer_norm, rms_norm
from mixplan.passes.fx_ops.register import define

__all__ = ["LAYER_NORM_QUANT", "RMS_NORM_QUANT"]


def rms_norm_quant(x: Tensor, weight: Tensor | None, eps: float, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """quantize_act(rms_norm(x, weight, eps), group)."""
    return quantize.quantize_act(rms_norm(x, weight, eps), group)


def layer_norm_quant(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """quantize_act(layer_norm(x, weight, bias, eps), group)."""
    return quantize.quantize_act(layer_norm(x, weight, bias, eps), group)


def _rms_fake(x: Tensor, weight: Tensor | None, eps: float, group: int) -> tuple[Tensor, Tensor, Tensor]:
    return quantize.fake(x, group)


def _layer_fake(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, group: int) -> tuple[Tensor, Tensor, Tensor]:
    return quantize.fake(x, group)


RMS_NORM_QUANT = define("rms_norm_quant", rms_norm_quant, _rms_fake)
LAYER_NORM_QUANT = define("layer_norm_quant", layer_norm_quant, _layer_fake)
