"""Ranges of integer products before bias, residual and activation come to them: what NPUs round that want a product's result quantized."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
from numpy.typing import NDArray

from mixplan.runtime.devices.npu_forms import COMMON
from mixplan.runtime.hal import Array
from mixplan.runtime.ops.checks import array_format, packed_arrays
from mixplan.runtime.ops.linear_math import quantized_product
from mixplan.runtime.packing import split_gated, unpack_codes
from mixplan.runtime.plan import Node
from mixplan.runtime.plan_io import LoadedPlan
from mixplan.targets.npu.lower.quantize import unscaled
from mixplan.targets.npu.target import PRODUCTS

__all__ = ["ProductRanges"]


class ProductRanges:
    """Works out products again from the codes that the plan's nodes were given; enter(name, low, high) is told of each.

    wanted: names of products' outputs. A product has its output's name, and `unscaled` of it is the product whose weight has COMMON for
    scale, where each of its channels has one.
    """

    def __init__(self, loaded: LoadedPlan, wanted: Collection[str], enter: Callable[[str, Array, Array], None]) -> None:
        plan = loaded.plan
        self._loaded, self._enter = loaded, enter
        self._nodes: dict[str, Node] = {plan.values[n.outputs[0]].name: n for n in plan.nodes if n.op in PRODUCTS}
        self._nodes = {name: node for name, node in self._nodes.items() if name in wanted}
        self._read = {plan.values[i].name for node in self._nodes.values() for i in node.inputs[:3]}
        self._held: dict[str, Array] = {}

    @property
    def names(self) -> Collection[str]:
        """The outputs that it knows of."""
        return self._nodes.keys()

    def look(self, name: str, array: Array) -> None:
        """A tap."""
        if name in self._read:
            self._held[name] = array
        if name in self._nodes:
            self._products(name, self._nodes[name])

    def _products(self, name: str, node: Node) -> None:
        codes, scales, sums = (self._held[self._loaded.plan.values[i].name] for i in node.inputs[:3])
        given = [self._loaded.constant(i) if i >= 0 else None for i in [*node.inputs, -1][3:6]]
        fmt, packed = array_format(node.op, node.attrs, given[1], given[2]), packed_arrays(*given)
        rows = node.attrs["rows"]
        assert isinstance(rows, int)
        for piece in split_gated(packed) if node.op.startswith("gated") else (packed,):
            made = quantized_product(fmt, piece, codes, scales, sums, rows)
            self._enter(name, made, made)
            if not fmt.group_size:
                raw = _divided(made, unpack_codes(fmt, piece).scales[:rows, 0])
                self._enter(unscaled(name), raw, raw)


def _divided(made: NDArray[np.float32], scales: NDArray[np.float32]) -> NDArray[np.float32]:
    """By each channel's scale; a channel whose scale is 0 gives nothing."""
    with np.errstate(all="ignore"):
        return np.asarray(np.where(scales != 0, made / (scales / np.float32(COMMON)), np.float32(0)), np.float32)
