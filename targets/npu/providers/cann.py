"""Huawei's CANN provider (Ascend)."""

from __future__ import annotations

from mixplan.targets.npu.providers.base import ProviderRules

__all__ = ["RULES"]

RULES = ProviderRules(
    name="cann",
    # ONNX 1.12, which its list of operators refers to.
    opset=17,
    activations=(),
    quantized_outputs=False,
    source="https://onnxruntime.ai/docs/execution-providers/community-maintained/CANN-ExecutionProvider.html",
    note="float models alone; its precision mode makes them fp16",
)
