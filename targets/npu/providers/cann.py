"""Huawei's CANN provider (Ascend)."""

from __future__ import annotations

from mixplan.targets.npu.providers.base import ProviderRules

__all__ = ["RULES"]

RULES = ProviderRules(
    name="cann",
    # ONNX 1.12, which its list of operators refers to.
    opset=17,
    # Of MatMul it takes QDQ whose weights are constants with one scale for the tensor; results are dequantized by itself.
    activations=("int8",),
    quantized_outputs=False,
    source="https://www.hiascend.com/document/detail/en/canncommercial/850/devaids/amct/atlasamct_16_0148.html",
    note="QDQ models go through AMCT's adaptation first; its precision mode makes what is float fp16",
)
