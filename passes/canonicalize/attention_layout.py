"""Attention becomes token-major, and the swap of heads and tokens moves up to the projections' own transposes, which it cancels."""

from __future__ import annotations

from typing import Any

from torch import fx

from mixplan.passes.base import FunctionPass, PassContext, PassResult
from mixplan.passes.canonicalize.elementwise import is_elementwise, op_name
from mixplan.passes.canonicalize.permutes import permute_of
from mixplan.passes.canonicalize.reshapes import reshape_to
from mixplan.passes.fx_ops import ATTENTION, ATTENTION_TM, LINEAR
from mixplan.passes.patterns import Dim, argument, aten, axis_of, dims, is_call, is_tensor, mark_constants, rank
from mixplan.passes.rewriting import Rewriter

__all__ = ["ATTENTION_LAYOUT"]

_REDUCTIONS = (aten.mean.dim, aten.sum.dim_IntList)
_MIN_RANK = 3


def _run(graph: fx.GraphModule, context: PassContext) -> PassResult:
    mark_constants(graph.graph)
    edit = Rewriter(graph, "attention_layout")
    swap = _Swap(edit)
    count = 0
    for node in list(graph.graph.nodes):
        if node.op == "call_function" and node.target is ATTENTION:
            edit.anchor = node
            heads = [swap(x) for x in node.args[:3]]
            edit.replace(node, edit.call(ATTENTION_TM, *heads, *node.args[3:], **node.kwargs))
            count += 1
    return PassResult(graph, count > 0, count)


class _Swap:
    """Gives a node's value with dimensions 1 and 2 exchanged, made from swapped inputs as far up as the ops allow."""

    def __init__(self, edit: Rewriter) -> None:
        self.edit = edit
        self.done: dict[fx.Node, fx.Node] = {}

    def __call__(self, node: fx.Node) -> fx.Node:
        if node not in self.done:
            swapped = self._through(node)
            self.done[node] = swapped if swapped is not None else permute_of(self.edit, node, _axes(node))
        return self.done[node]

    def _through(self, node: fx.Node) -> fx.Node | None:
        """The swapped node from swapped inputs, None where the op does not let the swap pass."""
        if node.op != "call_function" or rank(node) < _MIN_RANK:
            return None
        if is_call(node, aten.permute.default):
            return permute_of(self.edit, node, _axes(node))
        if is_call(node, aten.reshape.default):
            return self._reshape(node)
        if is_elementwise(node):
            return self._elementwise(node)
        if is_call(node, aten.cat.default):
            axis = _swapped(axis_of(argument(node, 1, "dim", 0), node))
            return self.edit.call(aten.cat.default, [self(piece) for piece in node.args[0]], axis)
        if is_call(node, aten.slice.Tensor):
            axis = _swapped(axis_of(argument(node, 1, "dim", 0), node))
            return self.edit.call(aten.slice.Tensor, self(node.args[0]), axis, *node.args[2:])
        if is_call(node, aten.expand.default) and rank(node.args[0]) == rank(node):
            sizes = list(node.args[1])
            sizes[1], sizes[2] = sizes[2], sizes[1]
            return self.edit.call(aten.expand.default, self(node.args[0]), sizes)
        if (
            is_call(node, *_REDUCTIONS)
            and list(argument(node, 1, "dim") or ()) in ([-1], [rank(node) - 1])
            and argument(node, 2, "keepdim")
        ):
            return self.edit.call(node.target, self(node.args[0]), *node.args[1:], **node.kwargs)
        if op_name(node.target) in ("layer_norm", "rms_norm") and len(node.args[1]) == 1:
            return self.edit.call(node.target, self(node.args[0]), *node.args[1:], **node.kwargs)
        if is_call(node, LINEAR) and (len(node.args) < 4 or node.args[3] is None):
            return self.edit.call(LINEAR, self(node.args[0]), *node.args[1:])
        return None

    def _reshape(self, node: fx.Node) -> fx.Node | None:
        """A reshape lets the swap pass where it leaves the first three dimensions alone, or where one of the swapped ones is 1."""
        source = node.args[0]
        wanted = [dims(node)[axis] for axis in _axes(node)]
        if 1 in dims(node)[1:3]:
            return reshape_to(self.edit, source, wanted)
        if rank(source) >= _MIN_RANK and dims(source)[:3] == dims(node)[:3]:
            return reshape_to(self.edit, self(source), wanted)
        return None

    def _elementwise(self, node: fx.Node) -> fx.Node | None:
        """Each operand swapped; operands of lower rank get leading ones first, so that broadcasting stays what it was."""
        args: list[Any] = []
        for arg in node.args:
            swapped = self._operand(arg, rank(node)) if is_tensor(arg) else arg
            if swapped is None:
                return None
            args.append(swapped)
        return self.edit.call(node.target, *args, **node.kwargs)

    def _operand(self, x: fx.Node, wanted: int) -> fx.Node | None:
        if rank(x) == wanted:
            return self(x)
        if rank(x) <= wanted - _MIN_RANK:
            return x
        shape: list[Dim] = [*[1] * (wanted - rank(x)), *dims(x)]
        shape[1], shape[2] = shape[2], shape[1]
        if 1 in shape[1:3]:
            return reshape_to(self.edit, x, shape)
        padded = reshape_to(self.edit, x, (*[1] * (wanted - rank(x)), *dims(x)))
        return None if padded is None else permute_of(self.edit, padded, _axes(padded))


def _axes(node: fx.Node) -> list[int]:
    return [0, 2, 1, *range(_MIN_RANK, rank(node))]


def _swapped(axis: int) -> int:
    return {1: 2, 2: 1}.get(axis, axis)


ATTENTION_LAYOUT = FunctionPass("attention_layout", "canonicalize", "attention with token-major heads; transposes cancel", _run)
