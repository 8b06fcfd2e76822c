"""The NPU target: what it supports, and how it compiles a region."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec

from mixplan.runtime.devices.npu_tensors import region_tensors
from mixplan.runtime.errors import MissingExtraError, OptionError
from mixplan.runtime.plan import Node, Plan, Region, Value
from mixplan.targets.base import Capabilities, CompiledRegion, CompileOptions, CostModel, Support
from mixplan.targets.npu.lower.table import unsupported_reason
from mixplan.targets.npu.providers.base import ProviderRules
from mixplan.targets.npu.providers.table import RULES, activation_type, provider_rules

__all__ = ["PRODUCTS", "ROUNDED", "NpuTarget", "check_activation"]


ROUNDED = ("quantize_act", "rms_norm_quant", "layer_norm_quant")
"""Ops that round activations."""

PRODUCTS = ("linear_q", "gated_linear_q")
"""Ops that multiply rounded activations."""

_CALL_SECONDS = 100e-6


@dataclass(frozen=True)
class NpuTarget:
    """Compiles regions to ONNX models for one onnxruntime execution provider; a level is a provider."""

    provider: str = "cpu"

    @property
    def name(self) -> str:
        """The name by which plans and users ask for it."""
        return "npu"

    @property
    def rules(self) -> ProviderRules:
        """What the provider takes."""
        return provider_rules(self.provider)

    def for_provider(self, provider: str) -> NpuTarget:
        """The same target for another provider. OptionError where there is none of that name."""
        return NpuTarget(provider_rules(provider).name)

    def needs_range(self, node: Node) -> bool:
        """Whether a node's first output gets a static scale: codes of activations, and products of them where the provider wants that."""
        return node.op in ROUNDED or (self.rules.quantized_outputs and node.op in PRODUCTS)

    def capabilities(self) -> Capabilities:
        """Available where onnx is installed."""
        found = find_spec("onnx") is not None
        available = Support(found, "" if found else "onnx is not installed; pip install 'mixplan[npu]'")
        formats = ("f32", "bf16", "i8", "i6", "i5", "i4", "i3", "i2", "n5", "n4", "n3", "n2")
        notes = {rules.name: rules.note for rules in RULES.values() if rules.note}
        return Capabilities(self.name, available, tuple(RULES), formats, ("f32", "bf16", "i8"), notes)

    def resolve_levels(self, wanted: Sequence[str]) -> tuple[str, ...]:
        """The provider: levels of other targets, which `wanted` may hold, are not for this one."""
        return (self.provider,)

    def supports(self, node: Node, values: Sequence[Value]) -> Support:
        """See Target.supports."""
        reason = unsupported_reason(node, values, self.rules)
        return Support(not reason, reason)

    def cost_model(self) -> CostModel:
        """Of the CPU provider, the CPU's. OptionError for the others: which chip the plan will run on is for the user to say."""
        if self.provider != "cpu":
            raise OptionError(
                f"What work costs on an NPU of the provider {self.provider} is not known here.",
                hint="State it, as its data sheet says: --unit-cost npu:int8=40TOPS,f32=4TFLOPS,bandwidth=60GB/s,call=100us.",
            )
        from mixplan.targets.cpu.target import CpuTarget

        return replace(CpuTarget().cost_model(), call_seconds=_CALL_SECONDS, source="as the CPU, with a call of onnxruntime")

    def compile(self, plan: Plan, region: Region, options: CompileOptions) -> CompiledRegion:
        """See Target.compile. With `options.ranges`, activations get static scales, and OptionError says whose range is missing.

        Without any they are rounded row by row, as the plan's ops define it, which no NPU does in integers.
        """
        if find_spec("onnx") is None:
            raise MissingExtraError("The NPU target", "npu")
        from mixplan.targets.npu.graph import Range
        from mixplan.targets.npu.model import model_ports, region_model
        from mixplan.targets.npu.notes import weight_notes

        activation = activation_type(self.rules, options.activation)
        ranges = {name: Range(low, high) for name, (low, high) in options.ranges.items()}
        model = region_model(plan, region, self.rules, ranges=ranges, activation=activation, static=bool(ranges))
        return CompiledRegion(
            {self.provider: model.SerializeToString(deterministic=True)},
            metadata={
                "provider": self.provider,
                "opset": self.rules.opset,
                "rules": self.rules.source,
                "onnx_nodes": len(model.graph.node),
                "data_bytes": sum(one.tensor.nbytes for one in region_tensors(plan, region, self.rules.weights)),
            },
            suffix="onnx",
            ports=model_ports(model, plan, region),
            notes=weight_notes(plan, region, self.rules),
        )


def check_activation(provider: str, activation: str) -> None:
    """OptionError where the provider has no such type of activations."""
    activation_type(provider_rules(provider), activation)
