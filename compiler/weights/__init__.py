"""Lazy, strictly checked reading of a checkpoint's weights."""

from __future__ import annotations

from mixplan.compiler.weights.base import WeightSource

__all__ = ["WeightSource"]
