"""The original as a reference: the captured graph in float32 by torch, on the windows that the plan is measured on."""

from __future__ import annotations

import shutil
import tempfile
from types import TracebackType
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mixplan.compiler.frontends.base import Captured
from mixplan.compiler.replay import Replay, load_parameters
from mixplan.runtime.evaluation.windows import Windows

if TYPE_CHECKING:
    from torch import fx

__all__ = ["TorchReference", "replay_reference"]

Floats: TypeAlias = NDArray[np.float32]

# The share of the free space that kept logits may take.
_SPACE = 0.5


class TorchReference:
    """Logits of a replayed graph on `windows`, i64 [W, L], each window computed once.

    They are kept, in float32, in a temporary file without a name where it takes at most half of the space that is free, and otherwise
    computed again at each call. keep=False always computes. The graph's parameters must hold real values and stay as they are.
    """

    def __init__(self, graph: fx.GraphModule, vocab_size: int, windows: Windows, *, keep: bool = True) -> None:
        self.vocab_size = vocab_size
        self._replay = Replay(graph)
        self._windows = windows
        self._shape = (windows.shape[1], vocab_size)
        self._kept: np.memmap[tuple[int, int, int], np.dtype[np.float32]] | None = None
        self._known: set[int] = set()
        size = len(windows) * windows.shape[1] * vocab_size * 4
        if keep and size <= _SPACE * shutil.disk_usage(tempfile.gettempdir()).free:
            with tempfile.TemporaryFile() as file:
                self._kept = np.memmap(file, np.float32, "w+", shape=(len(windows), *self._shape))

    @property
    def kept(self) -> bool:
        """Whether logits are kept."""
        return self._kept is not None

    def window(self, index: int) -> Floats:
        """Logits of window `index`, f32 [L, V]. Read only."""
        if self._kept is None:
            return self._compute(index)
        if index not in self._known:
            self._kept[index] = self._compute(index)
            self._known.add(index)
        return self._kept[index]

    def close(self) -> None:
        """Give the space back."""
        self._kept = None
        self._known.clear()

    def __enter__(self) -> TorchReference:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _compute(self, index: int) -> Floats:
        ids = [int(i) for i in self._windows[index]]
        logits: Floats = self._replay.step(ids, range(len(ids)), [0] * len(ids)).numpy()
        return logits


def replay_reference(captured: Captured, windows: Windows, *, keep: bool = True) -> TorchReference:
    """A captured checkpoint as a reference. Reads its weights into memory, in float32, and leaves them in `captured.graph`: capture anew
    for a compile."""
    load_parameters(captured.graph, captured.weights)
    return TorchReference(captured.graph, captured.model.vocab_size, windows, keep=keep)
