"""State of the one export in progress: what the traced functions of the interfaces need beyond their arguments."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from torch import Tensor

from mixplan.runtime.errors import InternalError

__all__ = ["ExportContext", "current", "exporting"]


@dataclass
class ExportContext:
    """`layers` counts attention nodes; the tensors are the traced step inputs (see compiler/capture.py)."""

    layers: int = 0
    position_ids: Tensor | None = None
    sequence_lengths: Tensor | None = None

    def next_layer(self) -> int:
        """The running number of the attention node being traced."""
        self.layers += 1
        return self.layers - 1


_CURRENT: ContextVar[ExportContext | None] = ContextVar("mixplan_export", default=None)


@contextmanager
def exporting(context: ExportContext) -> Iterator[ExportContext]:
    """Make `context` the current one."""
    token = _CURRENT.set(context)
    try:
        yield context
    finally:
        _CURRENT.reset(token)


def current() -> ExportContext:
    """The export in progress."""
    context = _CURRENT.get()
    if context is None:
        raise InternalError("mixplan's attention was called outside of an export")
    return context
