"""Qualcomm's QNN provider, on the HTP."""

from __future__ import annotations

from mixplan.targets.npu.providers.base import ProviderRules

__all__ = ["RULES"]

RULES = ProviderRules(
    name="qnn",
    opset=21,
    activations=("uint16", "uint8"),
    weights=("i8", "u8"),
    per_channel=True,
    # Its documentation of QDQ models speaks of per-tensor and per-channel scales alone.
    block_wise=False,
    quantized_outputs=True,
    source="https://onnxruntime.ai/docs/execution-providers/QNN-ExecutionProvider.html",
    note="static shapes; what is not quantized is computed in fp16",
)
