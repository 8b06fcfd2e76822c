"""The run half of mixplan: load a plan and run it.

    model = mixplan.runtime.load("NAME.plan")
    logits = model.step([1, 15, 7], positions=[0, 1, 2], sequences=[0, 0, 0])

Importing the package loads nothing heavy; names are resolved on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mixplan.runtime import errors
from mixplan.runtime.quiet_numpy import import_numpy

if TYPE_CHECKING:
    from mixplan.runtime.generate import Chunk, Generation, generate_batch, generate_text
    from mixplan.runtime.loading import load
    from mixplan.runtime.metrics import Metrics
    from mixplan.runtime.model import Model
    from mixplan.runtime.placement import Placement
    from mixplan.runtime.plan import Plan
    from mixplan.runtime.plan_io import LoadedPlan, read_plan
    from mixplan.runtime.sampling import SamplingParams
    from mixplan.runtime.trust import is_trusted, record_trusted, sign

__all__ = [
    "Chunk",
    "Generation",
    "LoadedPlan",
    "Metrics",
    "Model",
    "Placement",
    "Plan",
    "SamplingParams",
    "errors",
    "generate_batch",
    "generate_text",
    "is_trusted",
    "load",
    "read_plan",
    "record_trusted",
    "sign",
]

_HOMES = {
    "Chunk": "generate",
    "Generation": "generate",
    "LoadedPlan": "plan_io",
    "Metrics": "metrics",
    "Model": "model",
    "Placement": "placement",
    "Plan": "plan",
    "SamplingParams": "sampling",
    "generate_batch": "generate",
    "generate_text": "generate",
    "is_trusted": "trust",
    "load": "loading",
    "read_plan": "plan_io",
    "record_trusted": "trust",
    "sign": "trust",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'mixplan.runtime' has no attribute {name!r}")
    if home != "loading":
        import_numpy()
    return getattr(import_module(f"mixplan.runtime.{home}"), name)
