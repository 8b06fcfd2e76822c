"""What `mixplan inspect` and `mixplan verify PLAN` show: a plan as plain data, read without loading any native code."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from mixplan.runtime.limits import kv_bytes_per_token, kv_formats
from mixplan.runtime.plan import Plan
from mixplan.runtime.plan_io import read_plan

__all__ = ["check_plan", "inspect_plan"]


def check_plan(path: Path) -> dict[str, Any]:
    """Read, digest and bounds-check the plan; PlanError says what is wrong."""
    loaded = read_plan(path)
    return {"plan": str(path), "files": len(loaded.plan.files) + 1, "nodes": len(loaded.plan.nodes), "sound": True}


def inspect_plan(path: Path) -> dict[str, Any]:
    """Facts, regions, layers, ops, files and provenance of the plan at `path`. Sizes in bytes, bits per weight."""
    plan = read_plan(path).plan
    return {
        "name": plan.name,
        "facts": _facts(plan),
        "schemes": _schemes(plan),
        "regions": [
            {
                "name": region.name,
                "device": region.device,
                "nodes": region.stop - region.start,
                "kernels": sorted(region.kernels),
                "reason": region.reason,
            }
            for region in plan.regions
        ],
        "layers": [
            {
                "layer": d.layer,
                "scheme": d.scheme,
                "parameters": d.parameters,
                "bits": round(d.bits, 4),
                "bytes": round(d.parameters * d.bits / 8),
                "requested": d.requested,
                "rule": d.rule,
                "reason": d.reason,
            }
            for d in plan.decisions
        ],
        "ops": dict(sorted(Counter(node.op for node in plan.nodes).items())),
        "passes": plan.passes,
        "rejections": list(plan.rejections),
        "files": {name: {"size": entry.size, "sha256": entry.sha256} for name, entry in sorted(plan.files.items())},
        "provenance": {
            "source_format": plan.provenance.source_format,
            "source_name": plan.provenance.source_name,
            "source_files": plan.provenance.source_files,
            "options": plan.provenance.options,
            "versions": plan.provenance.versions,
            "seed": plan.provenance.seed,
        },
    }


def _facts(plan: Plan) -> dict[str, Any]:
    weights = sum(entry.size for name, entry in plan.files.items() if name.endswith(".safetensors"))
    return {
        "architecture": plan.model.architecture,
        "parameters": plan.model.parameters,
        "vocabulary": plan.model.vocab_size,
        "context length": plan.model.context_length,
        "effective bits": round(plan.effective_bits, 4),
        "weight bytes": weights,
        "plan bytes": sum(entry.size for entry in plan.files.values()),
        "KV cache bytes per token": kv_bytes_per_token(plan),
        "KV cache dtypes": kv_formats(plan),
        "attention layers": len(plan.attention),
        "tokens per step, at most": plan.max_step_tokens,
        "schema version": plan.schema_version,
    }


def _schemes(plan: Plan) -> dict[str, dict[str, float]]:
    """Parameters and effective bits by scheme."""
    out: dict[str, dict[str, float]] = {}
    for decision in plan.decisions:
        entry = out.setdefault(decision.scheme, {"layers": 0, "parameters": 0, "bits": 0.0})
        entry["layers"] += 1
        entry["parameters"] += decision.parameters
        entry["bits"] += decision.parameters * decision.bits
    for entry in out.values():
        entry["bits"] = round(entry["bits"] / max(entry["parameters"], 1), 4)
    return dict(sorted(out.items()))
