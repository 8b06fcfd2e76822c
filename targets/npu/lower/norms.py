"""RMSNorm and LayerNorm over the last dim, and those whose result is rounded to integers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mixplan.runtime.plan import Node
from mixplan.targets.npu.lower.base import Lowering, attrs_of
from mixplan.targets.npu.lower.quantize import bind_rounded

if TYPE_CHECKING:
    from mixplan.targets.npu.graph import Graph

__all__ = ["NORMS"]


def _rms(g: Graph, node: Node) -> str:
    x, eps = g.value(node.inputs[0]), float(attrs_of(node)["eps"])
    mean = g.reduce("ReduceMean", g.op("Pow", x, g.number(2.0)), [len(g.shape(node.inputs[0])) - 1], keepdims=True)
    normal = g.op("Div", x, g.op("Sqrt", g.op("Add", mean, g.number(eps))))
    weight = node.inputs[1] if len(node.inputs) > 1 else -1
    return normal if weight < 0 else g.op("Mul", normal, g.value(weight))


def _layer(g: Graph, node: Node) -> str:
    inputs = [*node.inputs, -1, -1][:3]
    columns = g.shape(inputs[0])[-1]
    assert isinstance(columns, int)
    weight = g.value(inputs[1]) if inputs[1] >= 0 else g.array(np.ones(columns, np.float32))
    bias = [g.value(inputs[2])] if inputs[2] >= 0 else []
    return g.op("LayerNormalization", g.value(inputs[0]), weight, *bias, axis=-1, epsilon=float(attrs_of(node)["eps"]))


NORMS: dict[str, Lowering] = {
    "rms_norm": Lowering(lambda g, node: g.bind(node.outputs[0], _rms(g, node))),
    "layer_norm": Lowering(lambda g, node: g.bind(node.outputs[0], _layer(g, node))),
    "rms_norm_quant": Lowering(lambda g, node: bind_rounded(g, node, _rms(g, node))),
    "layer_norm_quant": Lowering(lambda g, node: bind_rounded(g, node, _layer(g, node))),
}
