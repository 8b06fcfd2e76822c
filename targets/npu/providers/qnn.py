"""Qualcomm's QNN provider, on the HTP."""

from __future__ import annotations

from mixplan.targets.npu.providers.base import ProviderRules

__all__ = ["RULES"]

RULES = ProviderRules(
    name="qnn",
    opset=21,
    activations=("uint16", "uint8"),
    quantized_outputs=True,
    source="https://onnxruntime.ai/docs/execution-providers/QNN-ExecutionProvider.html",
    note="static shapes; what is not quantized is computed in fp16",
)
