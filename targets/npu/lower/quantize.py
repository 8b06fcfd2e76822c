"""Activations rounded to integers, with static scales: QuantizeLinear and DequantizeLinear.

The plan's op makes codes, scales and sums from each row as it comes. An NPU takes scales that are known beforehand, so here a value's codes
stand for the number again (the DQ of a QDQ pair), and its scales come from the ranges that a text gave.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from mixplan.runtime.errors import OptionError
from mixplan.runtime.plan import Node
from mixplan.targets.npu.lower.base import Lowering
from mixplan.targets.npu.lower.quantize_rows import quantize_rows
from mixplan.targets.npu.providers.base import Activation

if TYPE_CHECKING:
    from mixplan.targets.npu.graph import Graph, Range

__all__ = ["MICROSOFT", "QUANTIZE", "bind_rounded", "quantize_dequantize", "static_scale", "unscaled"]

MICROSOFT = "com.microsoft"
"""The domain of onnxruntime's own operators."""


def static_scale(seen: Range, activation: Activation, *, power_of_two: bool = False) -> tuple[float, int]:
    """The scale and zero point with which numbers of this range fill the integers' range; 0 is always exact."""
    low, high = min(seen.low, 0.0), max(seen.high, 0.0)
    width = 2 * max(-low, high) if activation.symmetric else high - low
    scale = width / (activation.high - activation.low) or 1.0
    if power_of_two:
        scale = 2.0 ** math.ceil(math.log2(scale))
    scale = float(np.float32(scale)) or float(np.finfo(np.float32).tiny)
    zero = 0 if activation.symmetric else round(min(max(activation.low - low / scale, activation.low), activation.high))
    return scale, zero


def unscaled(name: str) -> str:
    """What the range of a product is called whose weight has one scale for all, COMMON (see runtime/devices/npu_forms.py)."""
    return f"{name} (unscaled)"


def quantize_dequantize(g: Graph, x: str, name: str) -> str:
    """x rounded to the activation type, with the range of the plan's value `name`."""
    if name not in g.ranges:
        raise OptionError(
            f"The activation {name!r} needs a static scale, and no range of it is known.",
            hint="Compile with --text FILE: a text of the kind that the model is for. Or choose a scheme of A16.",
        )
    kind = g.activation.kind
    scale, zero = static_scale(g.ranges[name], g.activation, power_of_two=kind in g.rules.power_of_two)
    scales, zeros = g.number(scale), g.array(np.asarray(zero, {"u8": "u1", "i8": "i1", "u16": "<u2", "i16": "<i2"}[kind]))
    # ONNX's own nodes take 16 bits from opset 21 on; before that, onnxruntime's do.
    domain = {"domain": MICROSOFT} if kind in ("u16", "i16") and g.rules.opset < 21 else {}
    return g.op("DequantizeLinear", g.op("QuantizeLinear", x, scales, zeros, **domain), scales, zeros, **domain)


def bind_rounded(g: Graph, node: Node, x: str) -> None:
    """Enter x, rounded, as the codes that the node makes. Its scales and sums are made only where another region reads them."""
    if g.static and not any(index in g.kept for index in node.outputs):
        g.rounded[node.outputs[0]] = quantize_dequantize(g, x, g.plan.values[node.outputs[0]].name)
        return
    for index, name in zip(node.outputs, quantize_rows(g, node, x), strict=True):
        g.bind(index, name)


QUANTIZE: dict[str, Lowering] = {"quantize_act": Lowering(lambda g, node: bind_rounded(g, node, g.value(node.inputs[0])))}
