"""Statistics of the checkpoint's own tensors, a range of rows at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from mixplan.compiler.tuning import one_torch_thread
from mixplan.compiler.weights.base import WeightSource
from mixplan.passes.profiling import TensorStats

__all__ = ["row_blocks", "weight_stats"]

# Elements that are looked at together: 16 MB in f32.
_BLOCK = 1 << 22


def row_blocks(weights: WeightSource, name: str) -> Iterator[Tensor]:
    """A weight's rows [n, K], some at a time; stacks of matrices [E, N, K] matrix by matrix."""
    shape = weights.shape(name)
    if len(shape) < 2:
        yield torch.from_numpy(weights.read(name).copy()).float().reshape(1, -1)
        return
    step = max(_BLOCK // max(math.prod(shape[1:]), 1), 1)
    for start in range(0, shape[0], step):
        rows = weights.read_rows(name, start, min(start + step, shape[0]))
        yield torch.from_numpy(rows if rows.flags.writeable else rows.copy()).float().reshape(-1, shape[-1])


def weight_stats(weights: WeightSource, progress: Callable[[float], None] | None = None) -> dict[str, TensorStats]:
    """Statistics of every tensor of the checkpoint, by name."""
    names = weights.names()
    total = sum(math.prod(weights.shape(name)) for name in names)
    found: dict[str, TensorStats] = {}
    done = 0
    for name in names:
        stats = TensorStats()
        for block in row_blocks(weights, name):
            with one_torch_thread():
                stats = stats.merge(TensorStats.of(block))
            done += block.numel()
            if progress is not None:
                progress(done / max(total, 1))
        found[name] = stats
    return found
