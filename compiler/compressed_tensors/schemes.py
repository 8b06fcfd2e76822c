"""What compressed-tensors can say of a layer, and why not where it cannot."""

from __future__ import annotations

from typing import Any

from mixplan.runtime.formats import WeightFormat

__all__ = ["FLOAT_QUANTIZED", "INT_QUANTIZED", "NAIVE_QUANTIZED", "PACK_QUANTIZED", "config_group", "format_name", "refusal"]

PACK_QUANTIZED = "pack-quantized"
"""Codes packed into int32 without gaps, scales for each group or row."""

INT_QUANTIZED = "int-quantized"
"""int8 weights with a scale for each row, int8 inputs with a scale for each token: the kernels that engines have for W8A8."""

FLOAT_QUANTIZED = "float-quantized"
"""e4m3 weights with a scale for each row, e4m3 inputs with a scale for each token."""

NAIVE_QUANTIZED = "naive-quantized"
"""e4m3 weights with a scale for each row."""


def refusal(fmt: WeightFormat, columns: int) -> str:
    """Why the format has no counterpart; "" where it has one."""
    if fmt.floating:
        return "its 8-bit floats have scales in groups; engines read them with one for each row" if fmt.group_size else ""
    if fmt.nonuniform:
        return "its codes are entries of a codebook; compressed-tensors has evenly spaced ones only"
    if fmt.has_minimum:
        return "its groups have f16 minima; compressed-tensors has whole zero points"
    if fmt.group_size and columns % fmt.group_size:
        return f"its {columns} columns are no multiple of the group of {fmt.group_size}"
    return ""


def format_name(fmt: WeightFormat, rounded_input: bool) -> str:
    """The way in which the layer's tensors are stored."""
    if fmt.floating:
        return FLOAT_QUANTIZED if rounded_input else NAIVE_QUANTIZED
    return INT_QUANTIZED if fmt.bits == 8 and not fmt.group_size and fmt.symmetric and rounded_input else PACK_QUANTIZED


def config_group(fmt: WeightFormat, rounded_input: bool, targets: list[str]) -> dict[str, Any]:
    """An entry of `config_groups`: the layers `targets` have weights of this format, and maybe inputs of 8 bits."""
    kind = "float" if fmt.floating else "int"
    grouped: dict[str, Any] = {"strategy": "group", "group_size": fmt.group_size} if fmt.group_size else {}
    weights = {"num_bits": fmt.bits, "type": kind, "symmetric": fmt.symmetric, "dynamic": False, "strategy": "channel"} | grouped
    inputs = {"num_bits": 8, "type": kind, "symmetric": True, "dynamic": True, "strategy": "token"} | grouped
    return {
        "targets": targets,
        "weights": weights,
        "input_activations": inputs if rounded_input else None,
        "output_activations": None,
        "format": format_name(fmt, rounded_input),
    }
