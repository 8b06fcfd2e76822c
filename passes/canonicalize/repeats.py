"""stack and repeat_interleave in terms of reshape, expand and cat."""

from __future__ import annotations

from torch import fx

from mixplan.passes.canonicalize.reshapes import reshape_to
from mixplan.passes.patterns import Dim, argument, aten, axis_of, dims, is_tensor
from mixplan.passes.rewriting import Rewriter
from mixplan.passes.rules import SimpleRule, rule_pass

__all__ = ["REPEATS", "REPEAT_RULES"]


def _stack(node: fx.Node, edit: Rewriter) -> fx.Node | None:
    """stack is a cat along a new dimension of size 1."""
    axis = axis_of(argument(node, 1, "dim", 0), node)
    pieces = []
    for piece in node.args[0]:
        shape: list[Dim] = list(dims(piece))
        shape.insert(axis, 1)
        reshaped = reshape_to(edit, piece, shape)
        if reshaped is None:
            return None
        pieces.append(reshaped)
    return edit.call(aten.cat.default, pieces, axis)


def _repeat_interleave(node: fx.Node, edit: Rewriter) -> fx.Node | None:
    """Each element `count` times in a row: a new dimension of size 1 behind the axis, expanded, and merged."""
    source, count = node.args[0], node.args[1]
    axis = argument(node, 2, "dim")
    if axis is None or not isinstance(count, int) or not is_tensor(source):
        return None
    if count == 1:
        return source
    axis = axis_of(axis, source)
    shape: list[Dim] = list(dims(source))
    apart = reshape_to(edit, source, [*shape[: axis + 1], 1, *shape[axis + 1 :]])
    if apart is None:
        return None
    sizes = [-1] * len(dims(apart))
    sizes[axis + 1] = count
    return reshape_to(edit, edit.call(aten.expand.default, apart, sizes), dims(node))


REPEAT_RULES = (
    SimpleRule("stack", (aten.stack.default,), _stack),
    SimpleRule("repeat_interleave", (aten.repeat_interleave.self_int,), _repeat_interleave),
)
REPEATS = rule_pass("repeats", "canonicalize", "stack and repeat_interleave to reshape, expand and cat", REPEAT_RULES)
