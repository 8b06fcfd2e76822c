"""Which node a failed pass was working on, read from the frames that its exception passed through."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

import torch
from torch import fx

from mixplan.passes.patterns import source_line

__all__ = ["working_on"]

_TORCH = f"{Path(torch.__file__).parent}/"
# What passes call the node at hand; before any other local variable that holds a node.
_NAMES = ("node", "n", "user", "call")


def working_on(error: BaseException) -> str:
    """' at node NAME (its source line)' of the node that the deepest frame with one had in its hands; "" where no frame had any.

    Frames of torch (which pass nodes around under many names) count only where no other frame has a node.
    """
    frames = _frames(error.__traceback__)
    ours = [frame for frame in frames if not frame.tb_frame.f_code.co_filename.startswith(_TORCH)]
    for frame in [*reversed(ours), *reversed(frames)]:
        node = _node_of(frame)
        if node is not None:
            source = source_line(node)
            return f" at node {node.name}{f' ({source})' if source else ''}"
    return ""


def _frames(trace: TracebackType | None) -> list[TracebackType]:
    frames = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    return frames


def _node_of(frame: TracebackType) -> fx.Node | None:
    nodes = {name: value for name, value in frame.tb_frame.f_locals.items() if isinstance(value, fx.Node)}
    for name in _NAMES:
        if name in nodes:
            return nodes[name]
    # Locals stand in the order in which the code first names them: the last one is nearest to where it failed.
    return list(nodes.values())[-1] if nodes else None
