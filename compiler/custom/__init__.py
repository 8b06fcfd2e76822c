"""Ops that a user writes once, as a Python function, and that run on every target: `mixplan.kernel`."""

from __future__ import annotations

from mixplan.compiler.custom.kernel import Kernel, kernel

__all__ = ["Kernel", "kernel"]
