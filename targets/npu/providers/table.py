"""The rules of all providers, by name."""

from __future__ import annotations

from mixplan.runtime.errors import OptionError
from mixplan.targets.npu.providers import cann, cpu, openvino, qnn, vitisai
from mixplan.targets.npu.providers.base import ACTIVATIONS, Activation, ProviderRules

__all__ = ["RULES", "activation_type", "provider_rules"]

RULES: dict[str, ProviderRules] = {rules.name: rules for rules in (cpu.RULES, qnn.RULES, vitisai.RULES, cann.RULES, openvino.RULES)}


def provider_rules(name: str) -> ProviderRules:
    """The rules of the provider called `name`. OptionError where there is none."""
    if name not in RULES:
        raise OptionError(f"there is no NPU provider {name!r}.", hint=f"Providers: {', '.join(RULES)}.")
    return RULES[name]


def activation_type(rules: ProviderRules, wanted: str) -> Activation:
    """The integer type `wanted`, or the provider's first where it is "". OptionError for one that the provider does not take."""
    if wanted and wanted not in rules.activations:
        raise OptionError(
            f"the provider {rules.name} takes no activations of type {wanted!r}; allowed: {', '.join(rules.activations)}.",
            hint=f"Its rules: {rules.source}",
        )
    return ACTIVATIONS[wanted or rules.activations[0]]
