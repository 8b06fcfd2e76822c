"""Quantization of a weight's rows to the nearest codes, in bounded memory: each row for itself, with searched scales (scales.py)."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from mixplan.compiler.calibration.statistics import InputStatistics
from mixplan.compiler.quantizers import native
from mixplan.compiler.quantizers.gptq import compensated
from mixplan.compiler.scales import columns_weights, encode, search
from mixplan.runtime.errors import CheckpointError
from mixplan.runtime.formats import BF16, WeightFormat, round_up
from mixplan.runtime.packing import Packed, Quantized, dequantize, pack

__all__ = ["dequantized", "not_finite", "pack_rows", "quantize_rows"]


def pack_rows(fmt: WeightFormat, rows: torch.Tensor, name: str, inputs: InputStatistics | None = None) -> Packed:
    """Rows f32 [n, K] in the packed layout of `fmt`. CheckpointError naming `name` where they are not finite."""
    if fmt.quantized:
        return pack(fmt, quantize_rows(fmt, rows, name, inputs))
    values: NDArray[np.float32] = rows.numpy()
    if not np.isfinite(values).all():
        raise not_finite(name)
    return pack(fmt, values)


def quantize_rows(
    fmt: WeightFormat, rows: torch.Tensor, name: str, inputs: InputStatistics | None = None, *, compensate: bool = True
) -> Quantized:
    """Rows f32 [n, K] to codes, scales and, where asymmetric, zero points or minima.

    inputs: what is known of the layer's input: squared errors count by its moments; where it has Hessians, errors are compensated
    (unless compensate is false).
    """
    count, columns = rows.shape
    group = fmt.group_size or columns
    padded = round_up(columns, group)
    if padded != columns:
        rows = torch.nn.functional.pad(rows, (0, padded - columns))
    grouped = rows.reshape(count, padded // group, group)
    low, high = torch.aminmax(grouped, dim=-1)
    if not bool(torch.isfinite(low).all() and torch.isfinite(high).all()):
        raise not_finite(name)
    factors = inputs.factors() if compensate and inputs is not None else []
    weights = None if inputs is None else columns_weights(inputs.moments, group)
    if native.available() and not fmt.floating:
        codes, scale, zero = native.quantize(fmt, rows, group, weights, factors)
    elif factors and inputs is not None:
        codes, scale, zero = compensated(fmt, grouped, factors, inputs.moments)
    else:
        scale, zero = search(fmt, grouped, weights)
        codes = encode(fmt, grouped, scale, zero)
    if not bool(torch.isfinite(scale).all() and torch.isfinite(zero).all()):
        raise CheckpointError(
            f"Weight {name} holds numbers too large for {fmt.scale_dtype.value} scales.", hint="Give that layer the scheme BF16 or FP32."
        )
    flat = codes.to(torch.uint8).reshape(count, padded)[:, :columns].contiguous()
    scales: NDArray[np.float32] = scale.numpy()
    stored = scales if fmt.two_level else scales.astype(fmt.scale_dtype.numpy)
    zeros = None if fmt.symmetric else zero.numpy().astype(fmt.zero_dtype.numpy)
    return Quantized(flat.numpy(), stored, zeros)


def dequantized(
    fmt: WeightFormat, rows: torch.Tensor, name: str, inputs: InputStatistics | None = None, *, compensate: bool = True
) -> torch.Tensor:
    """Rows f32 [n, K] as they come back from `fmt`, f32 [n, K]."""
    if fmt.quantized:
        return torch.from_numpy(dequantize(fmt, quantize_rows(fmt, rows, name, inputs, compensate=compensate)))
    return rows.bfloat16().float() if fmt.bits == BF16.bits else rows


def not_finite(name: str) -> CheckpointError:
    """The error for a weight with NaN in it."""
    return CheckpointError(f"Weight {name} holds NaN or infinity.", hint="The checkpoint is damaged, or training diverged: get it again.")
