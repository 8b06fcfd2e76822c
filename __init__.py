"""mixplan: lower a model into a mixed-precision execution plan, and run the plan.

Importing the package loads nothing heavy; `mixplan.compile`, `mixplan.kernel` and `mixplan.runtime` are resolved on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mixplan import runtime
    from mixplan.compiler.custom.kernel import kernel as kernel
    from mixplan.compiler.pipeline import compile

__version__ = "0.1.0"
__all__ = ["__version__", "compile", "kernel", "runtime"]


def __getattr__(name: str) -> Any:
    import importlib

    if name == "compile":
        return importlib.import_module("mixplan.compiler.pipeline").compile
    if name == "kernel":
        return importlib.import_module("mixplan.compiler.custom").kernel
    if name == "runtime":
        return importlib.import_module("mixplan.runtime")
    raise AttributeError(f"module 'mixplan' has no attribute {name!r}")
