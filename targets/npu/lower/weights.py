"""Weights as numbers: a DequantizeLinear over the codes, or the numbers themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mixplan.runtime.devices.npu_tensors import Weight, node_weights, unsupported_format, weight_tensors
from mixplan.runtime.plan import Node, Value
from mixplan.targets.npu.providers.base import ProviderRules

if TYPE_CHECKING:
    from mixplan.targets.npu.graph import Graph

__all__ = ["matrix", "product", "weight_check"]


def matrix(g: Graph, weight: Weight) -> str:
    """The weight [K, N] as f32."""
    parts = weight_tensors(weight, g.plan.values)
    codes = g.tensor(parts.codes)
    if parts.scales is None:
        return codes
    inputs = [codes, g.tensor(parts.scales), *([g.tensor(parts.zeros)] if parts.zeros is not None else [])]
    if not parts.block:
        return g.op("DequantizeLinear", *inputs, axis=1)
    return g.op("DequantizeLinear", *inputs, axis=0, block_size=parts.block)


def product(g: Graph, x: str, weight: Weight) -> str:
    """x [.., K] times the weight [K, N]."""
    return g.op("MatMul", x, matrix(g, weight))


def weight_check(node: Node, values: Sequence[Value], rules: ProviderRules) -> str:
    """Why a provider does not take a node's weights."""
    for weight in node_weights(node, values):
        fmt = weight.format
        if reason := unsupported_format(fmt):
            return reason
        if not fmt.quantized:
            continue
        kind = weight_tensors(weight, values).codes.kind
        if weight.form == "table":
            continue  # read by Gather, Cast and Mul, not as a quantized operator
        if kind not in rules.weights:
            allowed = ", ".join(rules.weights) or "none"
            return f"weights of type {kind}; the provider {rules.name} takes {allowed}"
        if fmt.group_size and not rules.block_wise:
            return f"weights with a scale for each {fmt.group_size} columns; the provider {rules.name} does not take block-wise scales"
        if not fmt.group_size and not rules.per_channel:
            return f"weights with a scale for each output channel; the provider {rules.name} takes one scale for a tensor"
    return ""
