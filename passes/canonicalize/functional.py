"""In-place ops become functional ones: every later reader of the changed tensor, or of a view of it, reads the new value."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import fx

from mixplan.passes.base import FunctionPass, PassContext, PassResult
from mixplan.passes.canonicalize.elementwise import op_name
from mixplan.passes.patterns import argument, aten, axis_of, dims, dtype_of, is_call, is_tensor, rank, source_line
from mixplan.passes.rewriting import Rewriter
from mixplan.runtime.errors import UnsupportedError

__all__ = ["FUNCTIONALIZE"]

_RESHAPES = frozenset(["view", "_unsafe_view", "reshape", "flatten", "unflatten", "unsqueeze", "squeeze", "view_as", "reshape_as"])
_SAME = frozenset(["alias", "detach", "contiguous", "lift_fresh", "type_as", "to", "dropout"])
_LIST_VIEWS = frozenset(["split", "split_with_sizes", "chunk", "unbind"])
_OTHER_VIEWS = frozenset(["slice", "select", "transpose", "t", "permute", "expand", "expand_as", "narrow"])


def _run(graph: fx.GraphModule, context: PassContext) -> PassResult:
    edit = Rewriter(graph, "functionalize")
    count = 0
    for node in list(graph.graph.nodes):
        if node.op == "call_function" and op_name(node.target) and node.target._schema.is_mutable:
            _rewrite(node, edit)
            count += 1
    return PassResult(graph, count > 0, count)


def _rewrite(node: fx.Node, edit: Rewriter) -> None:
    changed = node.args[0]
    if not is_tensor(changed):
        raise _unsupported(node, "its first argument is not a tensor")
    edit.anchor = node
    value = _functional(node, edit)
    chain = [changed]
    while (source := _viewed(chain[-1])) is not None:
        chain.append(source)
    base, new = chain[-1], value
    for view, source in pairwise(chain):
        new = _write_back(node, view, source, new, edit)
    stale = [alias for alias in _aliases(base) if alias < node]
    node.replace_all_uses_with(value)
    renewed: dict[fx.Node, fx.Node] = {base: new, changed: value}
    for alias in sorted(stale):
        late = [user for user in alias.users if node < user]
        if late and alias not in renewed:
            _replay(alias, renewed, edit)
        for user in late:
            user.replace_input_with(alias, renewed[alias])
    if "origin" in node.meta:
        value.meta["origin"] = node.meta["origin"]
    edit.graph.erase_node(node)


def _replay(alias: fx.Node, renewed: dict[fx.Node, fx.Node], edit: Rewriter) -> None:
    """Make the view `alias` anew, from the new value of what it views."""
    source = _viewed(alias)
    if source is None:
        return
    if source not in renewed:
        _replay(source, renewed, edit)
    if is_call(alias.args[0]) and _is_list_view(alias.args[0]):
        pieces = edit.call(alias.args[0].target, renewed[source], *alias.args[0].args[1:], **alias.args[0].kwargs)
        renewed[alias] = edit.call(alias.target, pieces, alias.args[1])
    else:
        renewed[alias] = edit.call(alias.target, renewed[source], *alias.args[1:], **alias.kwargs)


def _functional(node: fx.Node, edit: Rewriter) -> fx.Node:
    """The value that the in-place op would leave in its first argument."""
    name, x = op_name(node.target).removesuffix("_"), node.args[0]
    if name == "copy":
        value = node.args[1]
        if dims(value) != dims(x):
            value = edit.call(aten.expand_as.default, value, x)
    elif name == "fill" and not isinstance(node.args[1], fx.Node):
        value = edit.call(aten.full_like.default, x, node.args[1])
    elif name == "zero":
        value = edit.call(aten.zeros_like.default, x)
    else:
        packet = getattr(aten, name, None)
        overload = getattr(packet, node.target._overloadname, None)
        if overload is None or overload._schema.is_mutable or torch.Tag.nondeterministic_seeded in overload.tags:
            raise _unsupported(node, "it has no functional counterpart")
        value = edit.call(overload, *node.args, **node.kwargs)
    if dtype_of(value) is not dtype_of(x):
        value = edit.call(aten.to.dtype, value, dtype_of(x))
    return value


def _viewed(node: Any) -> fx.Node | None:
    """What `node` is a view of, None if it is a tensor of its own."""
    if not isinstance(node, fx.Node) or node.op != "call_function":
        return None
    name = op_name(node.target)
    if name in _SAME:
        return node.args[0] if dtype_of(node) is dtype_of(node.args[0]) else None
    if name in _RESHAPES or name in _OTHER_VIEWS:
        return node.args[0]
    if not name and node.args and _is_list_view(node.args[0]):
        return node.args[0].args[0]
    return None


def _is_list_view(node: Any) -> bool:
    return isinstance(node, fx.Node) and node.op == "call_function" and op_name(node.target) in _LIST_VIEWS


def _aliases(base: fx.Node) -> list[fx.Node]:
    """`base` and every view of it, in any depth."""
    found, pending = [base], [base]
    while pending:
        for user in pending.pop().users:
            views = list(user.users) if _is_list_view(user) else [user] if _viewed(user) is not None and user.args[0] in found else []
            found += views
            pending += views
    return found


def _write_back(node: fx.Node, view: fx.Node, source: fx.Node, value: fx.Node, edit: Rewriter) -> fx.Node:
    """The new value of `source`, of which `view` has become `value`."""
    name = op_name(view.target)
    if name in _SAME:
        return value
    if name in _RESHAPES:
        return edit.call(aten.view_as.default, value, source)
    if name == "slice":
        return edit.call(aten.slice_scatter.default, source, value, *view.args[1:], **view.kwargs)
    if name == "select":
        return edit.call(aten.select_scatter.default, source, value, *view.args[1:])
    if name == "transpose":
        return edit.call(aten.transpose.int, value, *view.args[1:])
    if name == "permute":
        axes = [axis_of(axis, source) for axis in argument(view, 1, "dims")]
        return edit.call(aten.permute.default, value, [axes.index(axis) for axis in range(rank(source))])
    raise _unsupported(node, f"it writes through a view made by {view.target}")


def _unsupported(node: fx.Node, why: str) -> UnsupportedError:
    return UnsupportedError(
        f"The in-place op {node.target} at node {node.name} ({source_line(node) or 'no source line'}) cannot be made functional: {why}."
    )


FUNCTIONALIZE = FunctionPass("functionalize", "canonicalize", "in-place ops to functional ones", _run)
