"""From a graph of torch and mixplan ops to the plan's values and nodes."""

from __future__ import annotations

from mixplan.compiler.lowering.graph import Lowered, lower

__all__ = ["Lowered", "lower"]
