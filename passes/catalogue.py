"""What `mixplan passes` lists."""

from __future__ import annotations

from mixplan.passes.base import PassOptions
from mixplan.passes.pipeline import default_passes

__all__ = ["catalogue"]


def catalogue(options: PassOptions | None = None) -> list[dict[str, str]]:
    """Name, stage and one-line description of every pass, in the order they run."""
    return [{"name": one.name, "stage": one.stage, "doc": one.summary} for one in default_passes(options or PassOptions())]
