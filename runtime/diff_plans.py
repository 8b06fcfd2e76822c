"""What `mixplan diff` shows: in what two plans differ. No native code is loaded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mixplan.runtime.limits import kv_bytes_per_token, kv_formats
from mixplan.runtime.plan import Plan
from mixplan.runtime.plan_io import read_plan
from mixplan.runtime.receipt import Receipt, read_receipt

__all__ = ["diff_plans"]


def diff_plans(a: Path, b: Path) -> dict[str, Any]:
    """What differs, each as {"a": ..., "b": ...}, None where only one has it. Sizes in bytes; kernels and files by their SHA-256.

    `same` is True where the two are equal to the last byte.
    """
    one, other = (_open(path) for path in (a, b))
    plans, receipts = (one[0], other[0]), (one[1], other[1])
    layers = [_layers(plan) for plan in plans]
    return {
        "a": plans[0].name,
        "b": plans[1].name,
        "same": one[2] == other[2],
        "facts": _changes(*(_facts(plan) for plan in plans)),
        "layers": _changes(*layers),
        "layers_equal": sum(layers[0][name] == layers[1].get(name) for name in layers[0]),
        "measured": _changes(*(dict(receipt.measured) if receipt else {} for receipt in receipts), equal=True),
        "achieved": _changes(*(dict(receipt.achieved) if receipt else {} for receipt in receipts), equal=True),
        "promise": _changes(*(dict(receipt.promise) if receipt else {} for receipt in receipts)),
        "ops": _changes(*(dict(Counter(node.op for node in plan.nodes)) for plan in plans)),
        "regions": _changes(*(_regions(plan) for plan in plans)),
        "kernels": _changes(*(_kernels(plan) for plan in plans)),
        "files": _changes(*({name: entry.sha256 for name, entry in plan.files.items() if "/" not in name} for plan in plans)),
        "provenance": _changes(*(_provenance(plan) for plan in plans)),
    }


def _open(path: Path) -> tuple[Plan, Receipt | None, str]:
    with read_plan(path, verify="manifest") as loaded:
        return loaded.plan, read_receipt(loaded), loaded.digest


def _changes(a: Mapping[str, Any], b: Mapping[str, Any], *, equal: bool = False) -> dict[str, dict[str, Any]]:
    """What stands under each name on both sides, where it differs; with `equal`, also where it does not."""
    names = dict.fromkeys((*a, *b))
    return {name: {"a": a.get(name), "b": b.get(name)} for name in names if equal or a.get(name) != b.get(name)}


def _facts(plan: Plan) -> dict[str, Any]:
    files = plan.files.items()
    return {
        "architecture": plan.model.architecture,
        "parameters": plan.model.parameters,
        "vocabulary": plan.model.vocab_size,
        "context length": plan.model.context_length,
        "effective bits": round(plan.effective_bits, 4),
        "weight bytes": sum(entry.size for name, entry in files if name.endswith(".safetensors")),
        "plan bytes": sum(entry.size for _, entry in files),
        "KV cache bytes per token": kv_bytes_per_token(plan),
        "KV cache dtypes": kv_formats(plan),
        "attention layers": len(plan.attention),
        "tokens per step, at most": plan.max_step_tokens,
        "nodes": len(plan.nodes),
        "end tokens": " ".join(map(str, plan.model.eos_token_ids)),
    }


def _layers(plan: Plan) -> dict[str, dict[str, Any]]:
    """Scheme, bits and bytes by layer; a layer that is stored twice has all of its schemes under its name."""
    found: dict[str, dict[str, Any]] = {}
    for decision in plan.decisions:
        size = round(decision.parameters * decision.bits / 8)
        before = found.get(decision.layer)
        found[decision.layer] = {
            "scheme": f"{before['scheme']} {decision.scheme}" if before else decision.scheme,
            "bits": round(decision.bits + (before["bits"] if before else 0), 4),
            "bytes": size + (before["bytes"] if before else 0),
            "rule": decision.rule,
        }
    return found


def _regions(plan: Plan) -> dict[str, str]:
    return {
        region.name: f"{region.device}, {region.stop - region.start} nodes, kernels: {' '.join(sorted(region.kernels)) or 'none'}"
        for region in plan.regions
    }


def _kernels(plan: Plan) -> dict[str, str]:
    """SHA-256 of each region's source and of its binaries."""
    found = {}
    for region in plan.regions:
        if region.source:
            found[f"{region.name} source"] = plan.files[region.source].sha256
        found.update({f"{region.name} {level}": plan.files[path].sha256 for level, path in sorted(region.kernels.items())})
    return found


def _provenance(plan: Plan) -> dict[str, Any]:
    origin = plan.provenance
    return {
        "source": f"{origin.source_name} ({origin.source_format})",
        "seed": origin.seed,
        **{f"option {name}": value for name, value in sorted(origin.options.items())},
        **{f"version of {name}": value for name, value in sorted(origin.versions.items())},
        **{f"source file {name}": value for name, value in sorted(origin.source_files.items())},
    }
