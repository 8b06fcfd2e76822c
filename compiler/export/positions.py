"""Positions made explicit.

Some models number the tokens of the call themselves: `arange(T)`, a count of tokens that are not padding, or the first T rows of a table.
In a ragged step the place of a token in the call is not its position, so these nodes are rewritten into uses of `position_ids`.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, fx, nn

from mixplan.compiler.export.editing import insert

__all__ = ["counts_padding", "rewrite_positions"]

aten = torch.ops.aten
_CASTS = (
    aten.to.dtype,
    aten.to.device,
    aten._to_copy.default,
    aten.clone.default,
    aten.alias.default,
    aten.unsqueeze.default,
    aten.expand.default,
    aten.type_as.default,
    aten.detach.default,
    aten.contiguous.default,
)
_MASKS = (aten.ne.Scalar, aten.ne.Tensor, aten.ones.default, aten.ones_like.default, aten.new_ones.default, aten.full.default)


def counts_padding(model: nn.Module) -> bool:
    """Whether the model's own positions start behind the padding id, so that it must number the tokens itself."""
    name = "create_position_ids_from_input_ids"
    return any(hasattr(module, name) or hasattr(sys.modules[type(module).__module__], name) for module in model.modules())


def rewrite_positions(module: fx.GraphModule) -> int:
    """Rewrite in place; gives the number of nodes rewritten."""
    graph = module.graph
    inputs = {node.name: node for node in graph.nodes if node.op == "placeholder"}
    positions = inputs["position_ids"]
    length = positions.meta["val"].shape[1]
    rewriter = _Rewriter(module, positions, length)
    count = 0
    for node in list(graph.nodes):
        if node.op == "call_function" and rewriter.rewrite(node):
            count += 1
    graph.eliminate_dead_code()
    module.recompile()
    return count


class _Rewriter:
    def __init__(self, module: fx.GraphModule, positions: fx.Node, length: Any) -> None:
        self.module, self.graph, self.positions, self.length = module, module.graph, positions, length

    def rewrite(self, node: fx.Node) -> bool:
        """Replace `node` where it numbers the step's tokens."""
        if str(node.target).startswith("aten.arange"):
            return self._arange(node)
        if node.target is aten.cumsum.default:
            return self._count(node)
        if node.target is aten.slice.Tensor:
            return self._table(node)
        return False

    def _is_length(self, size: Any) -> bool:
        return isinstance(size, torch.SymInt) and str(size) == str(self.length)

    def _line(self, before: fx.Node) -> fx.Node:
        """position_ids as [T]."""
        return insert(before, aten.select.int, self.positions, 0, 0)

    def _swap(self, node: fx.Node, new: fx.Node) -> bool:
        dtype = node.meta["val"].dtype
        if new.meta["val"].dtype != dtype:
            new = insert(node, aten.to.dtype, new, dtype)
        node.replace_all_uses_with(new)
        self.graph.erase_node(node)
        return True

    def _arange(self, node: fx.Node) -> bool:
        value: Tensor = node.meta["val"]
        start = node.args[0] if "start" in str(node.target) else 0
        step = node.args[2] if "step" in str(node.target) and len(node.args) > 2 else 1
        if not self._is_length(value.shape[0]) or not isinstance(start, int) or step != 1 or self._indexes_tokens(node):
            return False
        line = self._line(node)
        return self._swap(node, insert(node, aten.add.Tensor, line, start) if start else line)

    def _indexes_tokens(self, node: fx.Node) -> bool:
        """Whether the numbers pick tokens of the step (x[arange(T), ...]), which is right as it is."""
        for user in node.users:
            if user.target is aten.index.Tensor:
                for axis, index in enumerate(user.args[1]):
                    if index is node and self._is_length(user.args[0].meta["val"].shape[axis]):
                        return True
            elif user.target in _CASTS and self._indexes_tokens(user):
                return True
        return False

    def _count(self, node: fx.Node) -> bool:
        """cumsum over the tokens of (token is not padding), of ones: position + 1."""
        value: Tensor = node.meta["val"]
        axis = node.args[1] % max(value.ndim, 1)
        if value.ndim != 2 or axis != 1 or not self._is_length(value.shape[1]):
            return False
        source = node.args[0]
        while source.op == "call_function" and source.target in _CASTS:
            source = source.args[0]
        if source.target not in _MASKS:
            return False
        if source.target is aten.full.default and source.args[1] not in (1, True):
            return False
        return self._swap(node, insert(node, aten.add.Tensor, self.positions, 1))

    def _table(self, node: fx.Node) -> bool:
        """The first T rows of a constant or parameter: its rows at the positions."""
        table = node.args[0]
        axis, start = (node.args[1] if len(node.args) > 1 else 0), (node.args[2] if len(node.args) > 2 else 0)
        if not isinstance(table, fx.Node) or table.op != "get_attr" or start not in (0, None):
            return False
        if not self._is_length(node.meta["val"].shape[axis]):
            return False
        return self._swap(node, insert(node, aten.index_select.default, table, axis, self._line(node)))
