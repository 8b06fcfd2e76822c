"""Weights as numbers: a DequantizeLinear over the codes, or the numbers themselves; and products with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mixplan.runtime.devices.npu_forms import COMMON
from mixplan.runtime.devices.npu_weights import Weight, WeightTensors, weight_tensors
from mixplan.runtime.plan import Shape
from mixplan.targets.npu.lower.quantize import quantize_dequantize, unscaled

if TYPE_CHECKING:
    from mixplan.targets.npu.graph import Graph

__all__ = ["product"]


def _matrix(g: Graph, parts: WeightTensors) -> str:
    """The weight [K, N] as f32; without what is multiplied or added after the product."""
    codes = g.tensor(parts.codes)
    if parts.scales is None:
        return codes
    if parts.form.scales == "after":
        return g.op("DequantizeLinear", codes, g.number(COMMON))
    inputs = [codes, g.tensor(parts.scales), *([g.tensor(parts.zeros)] if parts.zeros is not None else [])]
    if not parts.block:
        return g.op("DequantizeLinear", *inputs, axis=1)
    return g.op("DequantizeLinear", *inputs, axis=0, block_size=parts.block)


def product(g: Graph, x: str, shape: Shape, weight: Weight, rounded: str = "") -> str:
    """x [.., K], of this shape, times the weight [K, N].

    rounded: the name of a product of quantized activations, whose result is quantized too, as soon as there is one, where the provider
    takes no product for quantized otherwise.
    """
    parts = weight_tensors(weight, g.plan.values, g.rules.weights)
    rounds = bool(rounded) and g.static and g.rules.quantized_outputs and parts.scales is not None
    after = parts.form.scales == "after"
    y = g.op("MatMul", x, _matrix(g, parts))
    if rounds and parts.minima is None:
        y = quantize_dequantize(g, y, unscaled(rounded) if after else rounded)
    if after:
        assert parts.scales is not None
        y = g.op("Mul", y, g.tensor(parts.scales))
    if parts.minima is not None:
        y = g.op("Add", y, g.op("MatMul", _group_sums(g, x, shape, weight, parts), g.tensor(parts.minima)))
        y = quantize_dequantize(g, y, rounded) if rounds else y
    return y


def _group_sums(g: Graph, x: str, shape: Shape, weight: Weight, parts: WeightTensors) -> str:
    """The sums [.., G] of x over each group of columns."""
    last = len(shape) - 1
    if not parts.block:
        return g.reduce("ReduceSum", x, [last], keepdims=True)
    groups = weight.format.groups(weight.columns)
    if spare := groups * parts.block - weight.columns:
        x = g.op("Pad", x, g.integers([0] * (2 * last + 1) + [spare]))
    return g.reduce("ReduceSum", g.reshape(x, (*shape[:-1], groups, parts.block)), [last + 1], keepdims=False)
