"""What `mixplan passes` lists: the pipeline, in order."""

from __future__ import annotations

from mixplan.passes.base import PassOptions
from mixplan.passes.pipeline import default_passes

__all__ = ["catalogue"]


def catalogue() -> list[dict[str, str]]:
    """Name, stage and one-line description of every pass of the default pipeline, in the order in which they run."""
    return [{"name": one.name, "stage": one.stage, "doc": one.summary} for one in default_passes(PassOptions())]
