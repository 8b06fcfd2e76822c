"""AMD's Vitis AI provider (Ryzen AI)."""

from __future__ import annotations

from mixplan.targets.npu.providers.base import ProviderRules

__all__ = ["RULES"]

RULES = ProviderRules(
    name="vitisai",
    opset=17,
    activations=("int8",),
    quantized_outputs=True,
    source="https://ryzenai.docs.amd.com/en/1.4/modelrun.html",
    power_of_two=True,
    note="its compiler turns what is float into bf16",
)
