"""The input of layers is divided by a number for each column, and their weights' columns multiplied: the same function, rounded elsewhere.

The division goes into the op before: a norm's weight and bias, the rows of the up projection for down, the rows of V for the output
projection (where query heads that share a KV head share its numbers). Lin and others: AWQ, 2023; Xiao and others: SmoothQuant, 2022. By
what to divide is not this pass's affair: `PassOptions.scaler` says it, and without one the pass does nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor, fx

from mixplan.passes.base import FunctionPass, PassContext, PassResult, ScaledLayers
from mixplan.passes.decision import decision_of, takes_over
from mixplan.passes.fx_ops import ATTENTION_TM, LAYER_NORM, LINEAR, RMS_NORM
from mixplan.passes.patterns import aten, commuted, dims, is_call, mark_constants, only_user, rank, slice_bounds, source_line
from mixplan.passes.rewriting import Rewriter

__all__ = ["SCALE_INPUTS"]

_RULE = "scale_inputs"


@dataclass(frozen=True)
class _Rows:
    """Rows [start, stop) of a linear layer's output; between: nodes from there to the scaled value, whose numbers change with it."""

    linear: fx.Node
    start: int
    stop: int
    between: tuple[fx.Node, ...]
    repeat: int = 1
    width: int = 0

    def shared(self) -> Tensor | None:
        """Which of the rows each column is made of; None where these are the same."""
        if self.repeat == 1:
            return None
        columns = torch.arange(self.stop - self.start).reshape(-1, 1, self.width)
        return columns.expand(-1, self.repeat, -1).reshape(-1)


def _run(graph: fx.GraphModule, context: PassContext) -> PassResult:
    scaler = context.options.scaler
    if scaler is None:
        return PassResult(graph, False)
    mark_constants(graph.graph)
    edit = Rewriter(graph, _RULE)
    uses: Counter[str] = Counter()
    for node in graph.graph.nodes:
        if node.op == "get_attr":
            uses[str(node.target)] += len(node.users)
    count = 0
    for x in list(dict.fromkeys(node.args[0] for node in graph.graph.nodes if is_call(node, LINEAR))):
        readers = [user for user in x.users if is_call(user, LINEAR) and user.args[0] is x]
        fold = _fold(x)
        if fold is None:
            continue
        problem = _problem(x, readers, fold, uses)
        if problem:
            context.rejections.add(_RULE, readers[0].name, problem, source_line(readers[0]))
            continue
        decisions = [decision_of(reader) for reader in readers]
        shared = fold.shared() if isinstance(fold, _Rows) else None
        weights = tuple(reader.args[1] for reader in readers)
        schemes = tuple(decision.scheme for decision in decisions if decision is not None)
        scales = scaler(ScaledLayers(graph, weights, schemes, shared))
        if scales is None:
            continue
        for reader in readers:
            _set(edit, reader, scales, None)
        if isinstance(fold, _Rows):
            _divide_rows(edit, fold, scales, shared)
        else:
            _divide_norm(edit, fold, scales)
        count += 1
    return PassResult(graph, count > 0, count)


def _fold(x: fx.Node) -> fx.Node | _Rows | None:
    """The norm, or the rows, that a division of x can go into."""
    if is_call(x, RMS_NORM, LAYER_NORM):
        return x
    if is_call(x, aten.mul.Tensor):
        for rows, other in commuted(x):
            found = _rows(rows, (x,))
            if found is not None and isinstance(other, fx.Node) and dims(other) == dims(x):
                return found
        return None
    attention = x.args[0] if is_call(x, aten.reshape.default) else x
    if not is_call(attention, ATTENTION_TM) or only_user(attention) is not x or rank(x) != 3:
        return None
    heads, value = attention.args[0], attention.args[2]
    count, kv_count, width = dims(heads)[2], dims(value)[2], dims(value)[3]
    if not (isinstance(count, int) and isinstance(kv_count, int) and isinstance(width, int)):
        return None
    if not is_call(value, aten.reshape.default) or only_user(value) is None or dims(value.args[0])[-1] != kv_count * width:
        return None
    return _rows(value.args[0], (value, attention, x), count // kv_count, width)


def _rows(node: object, between: tuple[fx.Node, ...], repeat: int = 1, width: int = 0) -> _Rows | None:
    """A linear layer, or a part of one's output, that nothing else reads."""
    if not isinstance(node, fx.Node) or only_user(node) is None:
        return None
    if is_call(node, LINEAR):
        return _Rows(node, 0, int(dims(node.args[1])[0]), (node, *between), repeat, width)
    bounds = slice_bounds(node)
    if bounds is None:
        return None
    linear, axis, start, stop, step = bounds
    if not is_call(linear, LINEAR) or axis != rank(linear) - 1 or step != 1:
        return None
    others = [slice_bounds(user) for user in linear.users if user is not node]
    if any(other is None or other[1] != axis or (other[2] < stop and start < other[3]) for other in others):
        return None
    return _Rows(linear, start, stop, (linear, node, *between), repeat, width)


def _problem(x: fx.Node, readers: list[fx.Node], fold: fx.Node | _Rows, uses: Counter[str]) -> str | None:
    """Why the input of these layers is left as it is."""
    if len(readers) != len(x.users):
        others = ", ".join(sorted(user.name for user in x.users if user not in readers))
        return f"{x} is also used by {others}"
    changed = [*readers, *([fold.linear] if isinstance(fold, _Rows) else [])]
    for node in changed:
        decision = decision_of(node)
        if decision is None or takes_over(decision):
            return f"the weight {node.args[1]} is taken over as the checkpoint has it"
        if any(uses[name] > 1 for name in _parameters(node.args[1])):
            return f"the weight {node.args[1]} is read by another layer; scaling it would store it twice"
    if isinstance(fold, _Rows) and len(fold.linear.args) > 3 and fold.linear.args[3] is not None:
        return f"{fold.linear} adds a residual"
    return None


def _parameters(weight: fx.Node) -> list[str]:
    pending, found = [weight], []
    while pending:
        node = pending.pop()
        if node.op == "get_attr":
            found.append(str(node.target))
        pending.extend(node.all_input_nodes)
    return found


def _set(edit: Rewriter, linear: fx.Node, columns: Tensor | None, rows: Tensor | None) -> None:
    """Multiply a linear layer's weight by numbers for columns [K], or its weight and bias by numbers for rows [N]."""
    edit.anchor = linear
    x, weight, bias, *rest = (*linear.args, None)[: max(len(linear.args), 3)]
    if columns is not None:
        weight = edit.call(aten.mul.Tensor, weight, edit.constant(columns, "input_scales"))
    if rows is not None:
        weight = edit.call(aten.mul.Tensor, weight, edit.constant(rows[:, None], "output_scales"))
        bias = None if bias is None else edit.call(aten.mul.Tensor, bias, edit.constant(rows, "output_scales"))
    linear.args = (x, weight, bias, *rest)
    mark_constants(edit.graph)


def _divide_rows(edit: Rewriter, fold: _Rows, scales: Tensor, shared: Tensor | None) -> None:
    rows = torch.ones(int(dims(fold.linear.args[1])[0]))
    each = scales
    if shared is not None:
        each = torch.empty(fold.stop - fold.start)
        each[shared] = scales
    rows[fold.start : fold.stop] = 1.0 / each
    _set(edit, fold.linear, None, rows)
    for node in fold.between:
        # The original has no such value.
        node.meta.pop("origin", None)


def _divide_norm(edit: Rewriter, norm: fx.Node, scales: Tensor) -> None:
    edit.anchor = norm
    x, weight, *bias, eps = norm.args
    numbers = edit.constant(1.0 / scales, "output_scales")
    scaled = [None if vector is None else edit.call(aten.mul.Tensor, vector, numbers) for vector in (weight, *bias)]
    norm.args = (x, numbers if weight is None else scaled[0], *scaled[1:], eps)
    norm.meta.pop("origin", None)
    mark_constants(edit.graph)


SCALE_INPUTS = FunctionPass(_RULE, "fusion", "columns of layers' inputs scaled for rounding, where the op before can take it up", _run)
