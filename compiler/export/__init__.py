"""From an nn.Module to the captured graph: interfaces, skeleton, export, unlifting, positions, checks."""

from __future__ import annotations
