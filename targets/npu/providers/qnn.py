"""Qualcomm's QNN provider, on the HTP."""

from __future__ import annotations

from mixplan.targets.npu.providers.base import ProviderRules

__all__ = ["RULES"]

RULES = ProviderRules(
    name="qnn",
    opset=21,
    activations=("uint16", "uint8"),
    # A product is one node of QNN where its inputs and its result are quantized; over block-wise weights it is computed in fp16 in between
    # (https://github.com/onnxruntime/onnxruntime-qnn/pull/476). 4-bit weights: https://github.com/microsoft/onnxruntime/pull/21171.
    quantized_outputs=True,
    source="https://onnxruntime.ai/docs/execution-providers/QNN-ExecutionProvider.html",
    note="static shapes; what is not quantized is computed in fp16; block-wise weights need QAIRT 2.47 or later",
)
