"""Where in the model a graph node comes from, for messages."""

from __future__ import annotations

import re

from torch import fx

__all__ = ["op_name", "source_line"]

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)\n\s*(.*)')
_PACKAGES = "site-packages/"


def source_line(node: fx.Node) -> str:
    """`file:line (code)` of the innermost frame that torch recorded, "unknown" if none."""
    trace = node.meta.get("stack_trace") or ""
    frames = _FRAME.findall(trace)
    if not frames:
        return "unknown"
    path, line, _, code = frames[-1]
    return f"{path.rpartition(_PACKAGES)[2]}:{line} ({code.strip()})"


def op_name(node: fx.Node) -> tuple[str, str]:
    """(`namespace.op`, overload) of a call's target."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return str(getattr(node.target, "__name__", node.target)), ""
    return str(schema.name).replace("::", "."), str(schema.overload_name or "default")
