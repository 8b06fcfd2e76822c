"""onnxruntime's own CPU provider: everything that the ONNX operators of this opset define."""

from __future__ import annotations

from mixplan.targets.npu.providers.base import ProviderRules

__all__ = ["RULES"]

RULES = ProviderRules(
    name="cpu",
    # The first with 4-bit elements and DequantizeLinear over blocks.
    opset=21,
    activations=("uint8", "int8", "uint16", "int16"),
    quantized_outputs=False,
    rough_sigmoid=True,
    integer_products=True,
    source="https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html",
)
