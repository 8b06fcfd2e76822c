"""What compressed-tensors can say of a layer, and why not where it cannot."""

from __future__ import annotations

from typing import Any

from mixplan.runtime.formats import WeightFormat

__all__ = ["INT_QUANTIZED", "PACK_QUANTIZED", "config_group", "format_name", "refusal"]

PACK_QUANTIZED = "pack-quantized"
"""Codes packed into int32 without gaps, scales for each group or row."""

INT_QUANTIZED = "int-quantized"
"""int8 weights with a scale for each row, int8 inputs with a scale for each token: the kernels that engines have for W8A8."""


def refusal(fmt: WeightFormat, columns: int) -> str:
    """Why the format has no counterpart; "" where it has one."""
    if fmt.nonuniform:
        return "its codes are entries of a codebook; compressed-tensors has evenly spaced ones only"
    if fmt.has_minimum:
        return "its groups have f16 minima; compressed-tensors has whole zero points"
    if fmt.group_size and columns % fmt.group_size:
        return f"its {columns} columns are no multiple of the group of {fmt.group_size}"
    return ""


def format_name(fmt: WeightFormat, int8_input: bool) -> str:
    """The way in which the layer's tensors are stored."""
    return INT_QUANTIZED if fmt.bits == 8 and not fmt.group_size and fmt.symmetric and int8_input else PACK_QUANTIZED


def config_group(fmt: WeightFormat, int8_input: bool, targets: list[str]) -> dict[str, Any]:
    """An entry of `config_groups`: the layers `targets` have weights of this format, and maybe inputs in int8."""
    grouped: dict[str, Any] = {"strategy": "group", "group_size": fmt.group_size} if fmt.group_size else {}
    weights = {"num_bits": fmt.bits, "type": "int", "symmetric": fmt.symmetric, "dynamic": False, "strategy": "channel"} | grouped
    inputs = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": True, "strategy": "token"} | grouped
    return {
        "targets": targets,
        "weights": weights,
        "input_activations": inputs if int8_input else None,
        "output_activations": None,
        "format": format_name(fmt, int8_input),
    }
