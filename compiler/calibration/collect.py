"""Gathers `InputStatistics` of every layer over windows of text, in one streamed run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, fx
from torch.nn import functional

from mixplan.compiler.calibration.statistics import Calibration, InputStatistics
from mixplan.compiler.frontends.base import Captured
from mixplan.compiler.streaming import Observer, stream
from mixplan.compiler.streaming.layers import product_layers
from mixplan.runtime.formats import GROUP_SIZES, round_up

__all__ = ["calibration_tokens", "collect"]

_HESSIAN_BYTES = 1 << 30
_LEAST_BLOCK = 128
# About 40 s of two server cores, and no more text than helps.
_OPERATIONS = 1.2e13
_MOST_TOKENS, _LEAST_TOKENS = 32768, 512


def calibration_tokens(parameters: int) -> int:
    """Tokens worth running for a model of that many parameters: a bounded number of operations, 2 for each parameter and token."""
    return int(min(_MOST_TOKENS, max(_LEAST_TOKENS, _OPERATIONS / (2 * max(parameters, 1)))))


def collect(
    captured: Captured,
    windows: Tensor | Sequence[Sequence[int]],
    *,
    hessians: bool = True,
    threads: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> Calibration:
    """Statistics of the input of every product with weights in `captured.graph`. windows: token ids [W, L].

    hessians: also E[x x^T], whole where all of them fit in 1 GiB, else in diagonal blocks that do. The graph is left as it is.
    """
    block = block_columns(_input_columns(captured.graph)) if hessians else 0
    observer = _Collector(block)
    report = stream(captured.graph, captured.weights, windows, observer, threads=threads, logits=False, progress=progress)
    finished = {id(sums): sums.finish() for sums in dict.fromkeys(observer.layers.values())}
    return Calibration({layer: finished[id(sums)] for layer, sums in observer.layers.items()}, report.tokens)


def block_columns(columns: Sequence[int], limit: int = _HESSIAN_BYTES) -> int:
    """The largest block, a power of two or all columns, with which inputs of these widths take at most `limit` bytes; at least 128."""
    size = max(columns, default=_LEAST_BLOCK)
    while size > _LEAST_BLOCK and sum(4 * k * min(k, size) for k in columns) > limit:
        size = 1 << ((size - 1).bit_length() - 1)
    return max(size, _LEAST_BLOCK)


def _input_columns(graph: fx.GraphModule) -> list[int]:
    """The width of every value that is multiplied by weights, each value once."""
    inputs: dict[fx.Node, int] = {}
    for node in graph.graph.nodes:
        found = product_layers(graph, node)
        if found is not None:
            source = node.args[found[0]]
            inputs[source] = int(source.meta["val"].shape[-1])
    return list(inputs.values())


class _Sums:
    def __init__(self, columns: int, block: int) -> None:
        self.tokens = 0
        self.moments = torch.zeros(columns)
        self.starts = list(range(0, columns, block)) if block else []
        self.blocks = [torch.zeros(min(block, columns - at), min(block, columns - at)) for at in self.starts]
        self.rounding = {group: torch.zeros(1 if not group else round_up(columns, group) // group) for group in (0, *GROUP_SIZES)}

    def add(self, x: Tensor) -> None:
        self.tokens += x.shape[0]
        self.moments += x.square().sum(0)
        for at, block in zip(self.starts, self.blocks, strict=True):
            part = x[:, at : at + len(block)]
            block.addmm_(part.T, part)
        # The largest of 32 columns, of which all larger groups' are made.
        columns = round_up(x.shape[1], GROUP_SIZES[0])
        padded = x if columns == x.shape[1] else functional.pad(x, (0, columns - x.shape[1]))
        largest = padded.reshape(x.shape[0], -1, GROUP_SIZES[0]).abs().amax(2)
        for group, sums in self.rounding.items():
            if not group:
                sums += largest.amax(1).square().sum()
                continue
            each = group // GROUP_SIZES[0]
            wide = largest if largest.shape[1] % each == 0 else functional.pad(largest, (0, -largest.shape[1] % each))
            sums += wide.reshape(x.shape[0], -1, each).amax(2).square().sum(0)

    def finish(self) -> InputStatistics:
        # A rounding error is even within a step of largest / 127: its mean square is step^2 / 12.
        count = max(self.tokens, 1)
        rounding = {group: sums / (count * 127.0**2 * 12.0) for group, sums in self.rounding.items()}
        for block in self.blocks:
            block /= count
        return InputStatistics(self.moments / count, tuple(self.blocks), rounding, self.tokens)


class _Collector(Observer):
    """Layers that read one value share one record: they are told of one after the other, with the same memory."""

    def __init__(self, block: int) -> None:
        self.layers: dict[str, _Sums] = {}
        self._block = block
        self._last: tuple[Tensor, _Sums] | None = None

    def on_input(self, layer: str, x: Tensor) -> None:
        if self._last is not None:
            before, sums = self._last
            if before.data_ptr() == x.data_ptr() and before.shape == x.shape and self.layers.get(layer, sums) is sums:
                self.layers[layer] = sums
                return
        sums = self.layers.setdefault(layer, _Sums(x.shape[1], self._block))
        sums.add(x.float())
        # Held until the next call, so that no other value can come to lie at its address.
        self._last = (x, sums)
