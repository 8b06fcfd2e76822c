"""What `mixplan inspect PLAN --where` shows: what really runs each region on this machine, and each node where a device hands nodes on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from mixplan.runtime.loading import load

__all__ = ["where_plan"]


def where_plan(path: Path, *, trust: bool = False, allow_cpu_fallback: bool = False) -> dict[str, Any]:
    """Load the plan, with a small KV cache. `regions`: where each runs and why. `nodes`: for each node of the plan that an execution
    provider runs, the provider and how many ONNX nodes of it; those that onnxruntime made of several nodes stand under its own names.
    """
    with load(path, trust=trust, allow_cpu_fallback=allow_cpu_fallback, max_sequences=1, kv_tokens=32, verify="manifest") as model:
        regions = [
            {"region": p.region, "nodes": p.nodes, "requested": p.requested, "device": p.device, "isa": p.isa, "reason": p.reason}
            for p in model.placement
        ]
        found: Counter[tuple[str, str]] = Counter()
        for nodes in model.node_providers().values():
            found.update((name.partition("/")[0], provider) for name, provider in nodes.items())
    rows = [{"node": node, "provider": provider, "onnx_nodes": count} for (node, provider), count in found.items()]
    return {"name": path.name, "regions": regions, "nodes": rows}
