"""The original as a reference: the captured graph in float32 by torch, on the windows that the plan is measured on.

`replay_reference` holds the weights in memory, `streamed_reference` reads them once and drops them: for models larger than memory.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mixplan.compiler.frontends.base import Captured
from mixplan.compiler.replay import Replay, load_parameters
from mixplan.compiler.streaming import Observer, stream
from mixplan.runtime.errors import CapacityError
from mixplan.runtime.evaluation.windows import Windows
from mixplan.runtime.progress import Progress

if TYPE_CHECKING:
    from torch import fx

__all__ = ["StreamedReference", "TorchReference", "replay_reference", "streamed_reference"]

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
        self._shape = windows.shape[1], vocab_size
        self._kept: Floats | None = None
        self._known: set[int] = set()
        if keep and _bytes(windows, vocab_size) <= _SPACE * _free():
            self._kept = _scratch((len(windows), *self._shape))

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


class StreamedReference(Observer):
    """Logits of a graph on windows, all computed before: each segment's weights are read once, used for all windows, and dropped."""

    def __init__(self, vocab_size: int, windows: Windows) -> None:
        size, free = _bytes(windows, vocab_size), _free()
        if size > free:
            raise CapacityError(
                f"The original's logits take {size:,} bytes in {tempfile.gettempdir()}, which has {free:,}.",
                hint="Take fewer windows or a shorter context, or set TMPDIR to a larger disk.",
            )
        self.vocab_size = vocab_size
        self._kept = _scratch((*windows.shape, vocab_size))

    def on_logits(self, windows: Sequence[int], logits: Tensor) -> None:
        """See Observer.on_logits."""
        for index, rows in zip(windows, logits.split(self._kept.shape[1]), strict=True):
            self._kept[index] = rows.numpy()

    def window(self, index: int) -> Floats:
        """Logits of window `index`, f32 [L, V]. Read only."""
        return self._kept[index]


def replay_reference(captured: Captured, windows: Windows, *, keep: bool = True) -> TorchReference:
    """A captured checkpoint as a reference. Reads its weights into memory, in float32, and leaves them in `captured.graph`: capture anew
    for a compile."""
    load_parameters(captured.graph, captured.weights)
    return TorchReference(captured.graph, captured.model.vocab_size, windows, keep=keep)


def streamed_reference(captured: Captured, windows: Windows, *, progress: Progress | None = None) -> StreamedReference:
    """A captured checkpoint, larger than memory perhaps, as a reference: computed now, on all windows, into a temporary file.

    `captured` is left as it is. CapacityError where the file does not fit.
    """
    reference = StreamedReference(captured.model.vocab_size, windows)
    told = None if progress is None else lambda done: progress("original", done)
    stream(captured.graph, captured.weights, torch.from_numpy(windows), reference, batch_tokens=windows.shape[1], progress=told)
    return reference


def _bytes(windows: Windows, vocab_size: int) -> int:
    return int(windows.size) * vocab_size * 4


def _free() -> int:
    return shutil.disk_usage(tempfile.gettempdir()).free


def _scratch(shape: tuple[int, ...]) -> Floats:
    """An array f32 in a file without a name, whose pages the system may write out."""
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, np.float32, "w+", shape=shape)
