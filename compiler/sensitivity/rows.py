"""Some rows of a layer's weight: how they round says how all do."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from mixplan.compiler.frontends.base import Captured
from mixplan.compiler.streaming.constants import load_constants
from mixplan.compiler.streaming.layers import product_layers
from mixplan.compiler.streaming.segments import table_of
from mixplan.passes.fx_ops import GROUPED_LINEAR, LINEAR
from mixplan.passes.patterns import aten, mark_constants
from mixplan.passes.precision.layers import layer_name

__all__ = ["Use", "WeightRows", "uses_of"]

_ROWS_FIRST = (aten.linear.default, LINEAR, GROUPED_LINEAR)
# Rows that are looked at: of layers, and of tables and heads, whose many rows differ more.
_FEW, _MANY, _LARGE = 128, 1024, 8192


class Use:
    """A node that reads a layer's weight: as a product ([N, K] rows by columns) or as a table of rows."""

    def __init__(self, node: fx.Node, weight: fx.Node, *, table: bool) -> None:
        self.node, self.weight, self.table = node, weight, table
        self.rows_first = table or node.target in _ROWS_FIRST


class WeightRows:
    """Rows of one layer, evenly spaced: values f32 [n, K]; places i64 [n], their numbers (of experts, in the stack of all); total: N."""

    def __init__(self, captured: Captured, use: Use) -> None:
        shape: tuple[int, ...] = tuple(use.weight.meta["val"].shape) if "val" in use.weight.meta else ()
        direct = use.rows_first and use.weight.op == "get_attr" and len(shape) == 2
        if direct:
            self.total = int(shape[0])
            self.places = _spread(self.total)
            name = str(use.weight.target)
            parts = [captured.weights.read_rows(name, row, row + 1) for row in self.places.tolist()]
            self.values = torch.cat([torch.from_numpy(part.copy()) for part in parts]).float()
            return
        whole: Tensor = load_constants(captured.graph, captured.weights, (use.weight,))[use.weight]
        matrix = (whole if use.rows_first else whole.transpose(-1, -2)).reshape(-1, whole.shape[-1] if use.rows_first else whole.shape[-2])
        self.total = matrix.shape[0]
        self.places = _spread(self.total)
        self.values = matrix[self.places].float()


def _spread(total: int) -> Tensor:
    count = min(total, _MANY if total > _LARGE else _FEW)
    return torch.arange(count) * total // count


def uses_of(captured: Captured) -> dict[str, list[Use]]:
    """The products and lookups of every layer of the captured graph, by the layer's name."""
    mark_constants(captured.graph.graph)
    found: dict[str, list[Use]] = {}
    for node in captured.graph.graph.nodes:
        table = table_of(node)
        if table is not None:
            found.setdefault(layer_name(str(table.target)), []).append(Use(node, table, table=True))
            continue
        product = product_layers(captured.graph, node)
        if product is not None:
            places = {aten.addmm.default: 2, GROUPED_LINEAR: 2}.get(node.target, 1)
            for layer in product[1]:
                found.setdefault(layer, []).append(Use(node, node.args[places], table=False))
    return found
