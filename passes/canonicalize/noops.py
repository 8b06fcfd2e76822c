"""Nodes that change nothing: checks, aliases, casts to the same dtype, dropout at inference, arithmetic with neutral numbers."""

from __future__ import annotations

from typing import Any

from torch import fx

from mixplan.passes.base import FunctionPass, PassContext, PassResult
from mixplan.passes.canonicalize.elementwise import op_name
from mixplan.passes.patterns import argument, aten, dims, dtype_of, is_call, is_tensor, same_dims, scalar_of
from mixplan.passes.rewriting import Rewriter
from mixplan.passes.rules import SimpleRule, rule_pass

__all__ = ["DROP_CHECKS", "DROP_NOOPS", "NOOP_RULES"]

_CHECKS = ("_assert_tensor_metadata", "_assert_async", "_assert_scalar", "sym_constrain_range", "sym_constrain_range_for_size")
_COPIES = (
    aten.alias.default,
    aten.detach.default,
    aten.clone.default,
    aten.contiguous.default,
    aten.lift_fresh.default,
    aten.lift_fresh_copy.default,
    aten.positive.default,
)
_DROPOUT = (aten.dropout.default, aten.feature_dropout.default, aten.alpha_dropout.default)
_CASTS = (
    aten.to.dtype,
    aten.to.device,
    aten.to.dtype_layout,
    aten.to.other,
    aten._to_copy.default,
    aten.type_as.default,
)
_NEUTRAL = {"add": 0.0, "sub": 0.0, "mul": 1.0, "div": 1.0, "pow": 1.0}
_NEUTRAL_TARGETS = (
    aten.add.Tensor,
    aten.sub.Tensor,
    aten.mul.Tensor,
    aten.div.Tensor,
    aten.mul.Scalar,
    aten.add.Scalar,
    aten.pow.Tensor_Scalar,
)
_SCALED = (aten.add.Tensor, aten.sub.Tensor)


def _drop_checks(graph: fx.GraphModule, context: PassContext) -> PassResult:
    dead = [node for node in graph.graph.nodes if node.op == "call_function" and _is_check(node.target) and not node.users]
    for node in reversed(dead):
        graph.graph.erase_node(node)
    return PassResult(graph, bool(dead), len(dead))


def _is_check(target: Any) -> bool:
    return op_name(target) in _CHECKS


def _drop_copy(node: fx.Node, edit: Rewriter) -> fx.Node | None:
    return node.args[0]


def _drop_dropout(node: fx.Node, edit: Rewriter) -> fx.Node | None:
    return None if argument(node, 2, "train", False) else node.args[0]


def _cast(node: fx.Node, edit: Rewriter) -> fx.Node | None:
    """A cast to the same dtype is nothing; any other is `aten.to.dtype`. All devices are one."""
    source, wanted = node.args[0], dtype_of(node)
    if not is_tensor(source):
        return None
    if dtype_of(source) is wanted:
        return source
    if is_call(node, aten.to.dtype) and len(node.args) == 2 and not node.kwargs:
        return None
    return edit.call(aten.to.dtype, source, wanted)


def _neutral(node: fx.Node, edit: Rewriter) -> fx.Node | None:
    """x + 0, x * 1 and the like."""
    x, number = node.args[0], node.args[1]
    name = op_name(node.target)
    if scalar_of(number) is None and scalar_of(x) is not None and name in ("add", "mul"):
        x, number = number, x
    if is_tensor(x) and scalar_of(number) == _NEUTRAL[name] and dtype_of(x) is dtype_of(node) and same_dims(x, node):
        return x
    return None


def _scaled(node: fx.Node, edit: Rewriter) -> fx.Node | None:
    """add and sub with alpha as a product and a sum."""
    alpha = node.kwargs.get("alpha", 1)
    if alpha == 1:
        return None
    other = node.args[1]
    product = edit.call(aten.mul.Tensor, other, alpha) if isinstance(other, fx.Node) else other * alpha
    return edit.call(node.target, node.args[0], product)


def _expand(node: fx.Node, edit: Rewriter) -> fx.Node | None:
    """expand to the shape that is there already; expand_as as expand."""
    source = node.args[0]
    if same_dims(source, node):
        return source
    if is_call(node, aten.expand_as.default):
        sizes = dims(node)
        if all(isinstance(size, int) or (i < len(dims(source)) and dims(source)[i] == size) for i, size in enumerate(sizes)):
            return edit.call(aten.expand.default, source, [size if isinstance(size, int) else -1 for size in sizes])
    return None


def _empty(node: fx.Node, edit: Rewriter) -> fx.Node | None:
    """Uninitialised memory as zeros, so that a plan computes the same every time."""
    zeros = {
        aten.empty.memory_format: aten.zeros.default,
        aten.empty_like.default: aten.zeros_like.default,
        aten.new_empty.default: aten.new_zeros.default,
    }
    kwargs = {name: value for name, value in node.kwargs.items() if name in ("dtype",)}
    return edit.call(zeros[node.target], *node.args, **kwargs)


DROP_CHECKS = FunctionPass("drop_checks", "canonicalize", "run-time checks that the plan makes itself", _drop_checks)
NOOP_RULES = (
    SimpleRule("drop_copy", _COPIES, _drop_copy),
    SimpleRule("drop_dropout", _DROPOUT, _drop_dropout),
    SimpleRule("cast", _CASTS, _cast),
    SimpleRule("neutral_number", _NEUTRAL_TARGETS, _neutral),
    SimpleRule("alpha", _SCALED, _scaled),
    SimpleRule("expand_to_same", (aten.expand.default, aten.expand_as.default), _expand),
    SimpleRule("empty_to_zeros", (aten.empty.memory_format, aten.empty_like.default, aten.new_empty.default), _empty),
)
DROP_NOOPS = rule_pass("drop_noops", "canonicalize", "copies, same-dtype casts, dropout, x * 1, x + 0", NOOP_RULES)
