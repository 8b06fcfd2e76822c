"""AMD's Vitis AI provider (Ryzen AI)."""

from __future__ import annotations

from mixplan.targets.npu.providers.base import ProviderRules

__all__ = ["RULES"]

RULES = ProviderRules(
    name="vitisai",
    # Which https://ryzenai.docs.amd.com/en/latest/modelcompat.html recommends.
    opset=17,
    # XINT8, whose scales are powers of two, and A16W8, whose are not. Both are symmetric.
    activations=("int8", "int16"),
    quantized_outputs=True,
    source="https://quark.docs.amd.com/latest/supported_accelerators/ryzenai/int8_int16_quantization.html",
    power_of_two=("i8",),
    note="its compiler turns what is float into bf16, which is what its makers advise for transformers",
)
