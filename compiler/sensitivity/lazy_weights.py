"""Weights for a run with gradients: read where they are used, in the forward pass and again in the backward one.

Autograd keeps what a product was made of; of weights it gets a note instead (saved_tensors_hooks), so that memory holds activations and
a bounded number of weights.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from mixplan.compiler.streaming.constants import load_constants
from mixplan.compiler.weights.base import WeightSource

__all__ = ["LazyWeights"]

_BYTES = 2 << 30


@dataclass(frozen=True)
class _Note:
    """A view of a constant's memory."""

    node: fx.Node
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class LazyWeights:
    """Constants of a graph by node; the last used 2 GiB stay in memory."""

    def __init__(self, module: fx.GraphModule, weights: WeightSource, limit: int = _BYTES) -> None:
        self._module, self._weights, self._limit = module, weights, limit
        self._held: OrderedDict[fx.Node, Any] = OrderedDict()
        self._owners: dict[int, fx.Node] = {}
        self._bytes = 0

    def get(self, node: fx.Node) -> Any:
        """The constant's value."""
        if node in self._held:
            self._held.move_to_end(node)
            return self._held[node]
        value = load_constants(self._module, self._weights, (node,))[node]
        self._held[node] = value
        if isinstance(value, Tensor):
            self._bytes += value.nbytes
            self._owners[value.untyped_storage().data_ptr()] = node
        while self._bytes > self._limit and len(self._held) > 1:
            _, old = self._held.popitem(last=False)
            if isinstance(old, Tensor):
                self._bytes -= old.nbytes
                self._owners.pop(old.untyped_storage().data_ptr(), None)
        return value

    def hooks(self) -> Any:
        """The context in which a forward pass leaves notes in place of weights."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def _pack(self, tensor: Tensor) -> Any:
        node = self._owners.get(tensor.untyped_storage().data_ptr())
        return tensor if node is None else _Note(node, tuple(tensor.shape), tensor.stride(), tensor.storage_offset())

    def _unpack(self, packed: Any) -> Tensor:
        if not isinstance(packed, _Note):
            tensor: Tensor = packed
            return tensor
        whole: Tensor = self.get(packed.node)
        return torch.as_strided(whole, packed.size, packed.stride, packed.offset)
