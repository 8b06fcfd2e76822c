"""What a user should know of how a region's weights stand in its ONNX model: where they take more room than in the plan, and why."""

from __future__ import annotations

from mixplan.runtime.devices.npu_weights import Weight, WeightTensors, node_weights, weight_tensors
from mixplan.runtime.plan import Plan, Region
from mixplan.targets.npu.providers.base import ProviderRules

__all__ = ["weight_notes"]

_WORTH = 1.5
"""How many times what a weight takes in the plan it may take in the model without a word."""


def weight_notes(plan: Plan, region: Region, rules: ProviderRules) -> tuple[str, ...]:
    """One line for each format and reason, with the number of weights and their bytes in the plan and in the model."""
    groups: dict[tuple[str, str, str], list[tuple[int, int]]] = {}
    for key, weight, parts in _grown(plan, region, rules):
        here = weight.format.total_bits(weight.rows, weight.columns) // 8
        groups.setdefault(key, []).append((here, sum(tensor.nbytes for tensor in parts.all)))
    return tuple(
        f"{len(sizes)} weights of {label} stand in the model for {rules.name} as {kind}, {sum(there for _, there in sizes):,} bytes where "
        f"the plan has {sum(here for here, _ in sizes):,}: {why}"
        for (label, kind, why), sizes in groups.items()
    )


def _grown(plan: Plan, region: Region, rules: ProviderRules) -> list[tuple[tuple[str, str, str], Weight, WeightTensors]]:
    found, seen = [], set()
    for node in plan.nodes[region.start : region.stop]:
        for weight in node_weights(node, plan.values):
            parts = weight_tensors(weight, plan.values, rules.weights)
            fmt = weight.format
            held = fmt.total_bits(weight.rows, weight.columns) // 8
            if not fmt.quantized or parts.codes.name in seen or sum(tensor.nbytes for tensor in parts.all) < _WORTH * held:
                continue
            seen.add(parts.codes.name)
            label = f"{fmt.name}{f' in groups of {fmt.group_size}' if fmt.group_size else ''}"
            found.append(((label, _KINDS.get(parts.form.kind, parts.form.kind), _why(weight, parts, rules)), weight, parts))
    return found


_KINDS = {"f32": "float32", "i8": "int8", "u8": "uint8", "i4": "int4", "u4": "uint4"}


def _why(weight: Weight, parts: WeightTensors, rules: ProviderRules) -> str:
    if parts.form.folded:
        return f"{parts.form.folded} ({rules.source})"
    if parts.form.stored == "entries":
        return "the entries of its codebook, which DequantizeLinear has no form for"
    if weight.form == "table":
        return "rows are gathered by id, which 4-bit elements do not allow for"
    return "the narrowest integers that DequantizeLinear takes there"
