"""Rotary embedding, by slices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mixplan.runtime.plan import Node
from mixplan.targets.npu.lower.base import Lowering, attrs_of

if TYPE_CHECKING:
    from mixplan.targets.npu.graph import Graph

__all__ = ["ROPE"]

_AXIS = 3


def _emit(g: Graph, node: Node) -> None:
    x = g.value(node.inputs[0])
    shape, turned = g.shape(node.inputs[0]), g.shape(node.inputs[1])[-1]
    assert isinstance(turned, int)
    half, interleaved = turned // 2, attrs_of(node)["style"] == "interleaved"

    def parts(name: str) -> list[str]:
        if interleaved:
            return [g.part(name, _AXIS, first, turned, 2) for first in (0, 1)]
        return [g.part(name, _AXIS, 0, half), g.part(name, _AXIS, half, turned)]

    a, b = parts(x)
    angles = [parts(g.op("Unsqueeze", g.value(index), g.integers([2]))) for index in node.inputs[1:3]]
    (cos_a, cos_b), (sin_a, sin_b) = angles
    new = [
        g.op("Sub", g.op("Mul", a, cos_a), g.op("Mul", b, sin_a)),
        g.op("Add", g.op("Mul", b, cos_b), g.op("Mul", a, sin_b)),
    ]
    if interleaved:
        pairs = g.op("Concat", *(g.op("Unsqueeze", one, g.integers([4])) for one in new), axis=4)
        new = [g.reshape(pairs, (*shape[:_AXIS], turned))]
    rest = [g.part(x, _AXIS, turned, -1)] if shape[_AXIS] != turned else []
    g.bind(node.outputs[0], g.op("Concat", *new, *rest, axis=_AXIS))


ROPE: dict[str, Lowering] = {"rope": Lowering(_emit)}
