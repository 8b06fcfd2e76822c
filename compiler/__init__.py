"""The compile half: front ends, capture, probing, lowering and plan emission. Needs `mixplan[compile]`.

`mixplan.compiler.probe` is resolved on first use, so that importing the package loads nothing heavy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mixplan.compiler.probing import probe

__all__ = ["probe"]


def __getattr__(name: str) -> Any:
    import importlib

    if name == "probe":
        return importlib.import_module("mixplan.compiler.probing").probe
    raise AttributeError(f"module 'mixplan.compiler' has no attribute {name!r}")
