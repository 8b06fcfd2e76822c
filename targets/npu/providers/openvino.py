"""Intel's OpenVINO provider, on the NPU."""

from __future__ import annotations

from mixplan.targets.npu.providers.base import ProviderRules

__all__ = ["RULES"]

RULES = ProviderRules(
    name="openvino",
    opset=21,
    # Of 16 bits it drops the pairs: https://github.com/microsoft/onnxruntime/pull/20622.
    activations=("uint8", "int8"),
    quantized_outputs=False,
    source="https://onnxruntime.ai/docs/execution-providers/OpenVINO-ExecutionProvider.html",
    note="static shapes; what is float is computed in fp16",
)
