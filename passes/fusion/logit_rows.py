"""Taking the wanted rows of logits moves up through all that works on each token by itself, so that only those rows are computed."""

from __future__ import annotations

from typing import Any

from torch import fx

from mixplan.passes.base import FunctionPass, PassContext, PassResult
from mixplan.passes.canonicalize.elementwise import is_elementwise
from mixplan.passes.decision import DECISION
from mixplan.passes.fx_ops import GATED_LINEAR, LAYER_NORM, LINEAR, RMS_NORM
from mixplan.passes.patterns import Dim, argument, aten, axis_of, dims, is_call, is_constant, is_tensor, mark_constants, rank, source_line
from mixplan.passes.rewriting import Rewriter

__all__ = ["LOGIT_ROWS"]

_RULE = "logit_rows"
_ROWWISE = (LINEAR, GATED_LINEAR, RMS_NORM, LAYER_NORM)


def _run(graph: fx.GraphModule, context: PassContext) -> PassResult:
    mark_constants(graph.graph)
    rows = next((node for node in graph.graph.nodes if node.op == "placeholder" and node.name == "logit_rows"), None)
    count = 0
    for index in list(rows.users) if rows is not None else []:
        if is_call(index, aten.index_select.default) and axis_of(index.args[1], index) == 1 and index.args[2] is rows and rank(index) >= 2:
            count += _sink(index, Rewriter(graph, _RULE), context)
    return PassResult(graph, count > 0, count)


def _sink(index: fx.Node, edit: Rewriter, context: PassContext) -> int:
    """Rebuild everything that only feeds `index` on its rows; returns the number of nodes rebuilt."""
    source, rows = index.args[0], index.args[2]
    tokens = dims(source)[1]
    cone = _cone(index, tokens)
    if not cone:
        context.rejections.add(_RULE, index.name, f"{source} does not work on each token by itself, or has other users", source_line(index))
        return 0
    edit.anchor = index
    taken: dict[fx.Node, fx.Node] = {}

    def on_rows(value: Any) -> Any:
        if not _has_tokens(value, tokens) or is_constant(value):
            return value
        if value not in taken:
            taken[value] = rebuilt(value) if value in cone else edit.call(aten.index_select.default, value, 1, rows)
        return taken[value]

    def rebuilt(node: fx.Node) -> fx.Node:
        if is_call(node, aten.reshape.default):
            shape = [1, -1, *dims(node)[2:]]
            return edit.call(node.target, on_rows(node.args[0]), shape)
        args = fx.map_arg(node.args, on_rows)
        new = edit.call(node.target, *args, **node.kwargs)
        # The same value, on the wanted rows: in a step that wants them all, as nodes are compared in, all of it.
        for key in (DECISION, "origin"):
            if key in node.meta:
                new.meta[key] = node.meta[key]
        return new

    # Inputs before users, so that recursion stays shallow.
    for node in sorted(cone):
        on_rows(node)
    edit.replace(index, on_rows(source))
    return len(cone)


def _cone(index: fx.Node, tokens: Dim) -> set[fx.Node]:
    """Row-wise nodes all of whose users are `index` or in the cone."""
    cone: set[fx.Node] = set()
    inside = {index}
    pending = [index.args[0]]
    while pending:
        node = max(pending)
        pending = [one for one in pending if one is not node]
        if not all(user in inside for user in node.users) or not _rowwise(node, tokens):
            continue
        cone.add(node)
        inside.add(node)
        pending += [source for source in node.all_input_nodes if _has_tokens(source, tokens)]
    return cone


def _rowwise(node: fx.Node, tokens: Dim) -> bool:
    """Whether the node's value at a token depends on its inputs at that token alone."""
    if not _has_tokens(node, tokens):
        return False
    if is_call(node, *_ROWWISE):
        return True
    if is_elementwise(node):
        return all(rank(source) == rank(node) or rank(source) < rank(node) - 1 for source in node.all_input_nodes)
    if is_call(node, aten.reshape.default):
        return _has_tokens(node.args[0], tokens) and all(isinstance(size, int) for size in dims(node)[2:])
    if is_call(node, aten.slice.Tensor):
        return axis_of(argument(node, 1, "dim", 0), node) > 1
    return False


def _has_tokens(node: Any, tokens: Dim) -> bool:
    return is_tensor(node) and rank(node) >= 2 and dims(node)[:2] == (1, tokens)


LOGIT_ROWS = FunctionPass(_RULE, "fusion", "the head, and what only it needs, runs on the wanted rows", _run)
