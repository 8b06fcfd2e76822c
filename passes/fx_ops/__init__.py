"""The custom fx ops, one file each; importing the package registers them with torch."""

from __future__ import annotations

from mixplan.passes.fx_ops.attention import attention
from mixplan.passes.fx_ops.grouped_linear import grouped_linear

__all__ = ["attention", "grouped_linear"]
