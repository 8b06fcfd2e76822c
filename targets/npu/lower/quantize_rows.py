"""Activations rounded to int8 row by row, as the plan's ops define it: for what another region goes on with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mixplan.runtime.plan import Node

if TYPE_CHECKING:
    from mixplan.targets.npu.graph import Graph

__all__ = ["quantize_rows"]

_LEAST = 2.0**-100


def quantize_rows(g: Graph, node: Node, x: str) -> tuple[str, str, str]:
    """Codes i8 [.., Kp], scales and sums f32 [.., G] of x [.., K]; see `runtime.packing.quantize_act`."""
    codes, lead = g.shape(node.outputs[0]), g.shape(node.outputs[0])[:-1]
    width, groups, columns = codes[-1], g.shape(node.outputs[1])[-1], g.shape(node.inputs[0])[-1]
    assert isinstance(width, int) and isinstance(groups, int) and isinstance(columns, int)
    if width != columns:
        x = g.op("Pad", x, g.integers([0] * (2 * len(codes) - 1) + [width - columns]))
    apart = g.reshape(x, (*lead, groups, width // groups))
    largest = g.reduce("ReduceMax", g.op("Abs", apart), [len(codes)], keepdims=True)
    scale = g.op("Where", g.op("Less", largest, g.number(_LEAST)), g.number(1.0), g.op("Div", largest, g.number(127.0)))
    steps = g.op("Round", g.op("Mul", apart, g.op("Div", g.number(1.0), scale)))
    whole = g.op("Clip", steps, g.array(np.asarray(-127, np.float32)), g.array(np.asarray(127, np.float32)))
    sums = g.op("Mul", scale, g.reduce("ReduceSum", whole, [len(codes)], keepdims=True))
    flat = [g.op("Squeeze", one, g.integers([len(codes)])) for one in (scale, sums)]
    return g.cast(g.reshape(whole, codes), "i8"), flat[0], flat[1]
