"""Rows of a table, by token id: the codes are gathered first, so that no more than the step's rows are made numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mixplan.runtime.devices.npu_weights import node_weights, weight_tensors
from mixplan.runtime.plan import Node
from mixplan.targets.npu.lower.base import Lowering

if TYPE_CHECKING:
    from mixplan.targets.npu.graph import Graph

__all__ = ["EMBEDDING"]


def _emit(g: Graph, node: Node) -> None:
    ids = g.value(node.inputs[0])
    weight = node_weights(node, g.plan.values)[0]
    parts = weight_tensors(weight, g.plan.values, g.rules.weights)
    rows = g.op("Gather", g.tensor(parts.codes), ids, axis=0)
    if parts.scales is None:
        g.bind(node.outputs[0], rows)
        return
    shape, groups = g.shape(node.outputs[0]), parts.scales.shape[-1]
    block = parts.block or weight.columns
    numbers = g.cast(rows, "f32")
    if groups * block != weight.columns:  # the last group is not whole
        lead = len(shape) - 1
        pads = g.integers([0] * (2 * lead + 1) + [groups * block - weight.columns])
        numbers = g.op("Pad", numbers, pads)
    apart = g.reshape(numbers, (*shape[:-1], groups, block))
    if parts.zeros is not None:
        zeros = g.cast(g.op("Gather", g.tensor(parts.zeros), ids, axis=0), "f32")
        apart = g.op("Sub", apart, g.op("Unsqueeze", zeros, g.integers([-1])))
    scales = g.op("Gather", g.tensor(parts.scales), ids, axis=0)
    numbers = g.op("Mul", apart, g.op("Unsqueeze", scales, g.integers([-1])))
    if parts.minima is not None:
        minima = g.op("Gather", g.tensor(parts.minima), ids, axis=0)
        numbers = g.op("Add", numbers, g.op("Unsqueeze", minima, g.integers([-1])))
    made = g.reshape(numbers, (*shape[:-1], groups * block))
    g.bind(node.outputs[0], made if groups * block == weight.columns else g.part(made, len(shape) - 1, 0, weight.columns))


EMBEDDING: dict[str, Lowering] = {"embedding": Lowering(_emit)}
