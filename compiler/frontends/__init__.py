"""Front ends: from a checkpoint on disk or a module in memory to a captured graph."""

from __future__ import annotations

from mixplan.compiler.frontends.base import Captured, Checkpoint, Source

__all__ = ["Captured", "Checkpoint", "Source"]
