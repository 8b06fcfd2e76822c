"""transpose, t, movedim and their like become `aten.permute`; chains cancel, and moving dimensions of size 1 is a reshape."""

from __future__ import annotations

from torch import fx

from mixplan.passes.canonicalize.elementwise import op_name
from mixplan.passes.canonicalize.reshapes import reshape_to
from mixplan.passes.patterns import argument, aten, axis_of, dims, is_call, is_tensor, rank
from mixplan.passes.rewriting import Rewriter
from mixplan.passes.rules import SimpleRule, rule_pass

__all__ = ["PERMUTES", "PERMUTE_RULES", "permutation", "permute_of"]

_TARGETS = (
    aten.transpose.int,
    aten.swapaxes.default,
    aten.swapdims.default,
    aten.t.default,
    aten.numpy_T.default,
    aten.mT.default,
    aten.permute.default,
    aten.movedim.int,
    aten.movedim.intlist,
)


def permutation(node: fx.Node) -> list[int] | None:
    """Which source dimension each dimension of a permuting node is, None for other nodes."""
    if node.op != "call_function" or node.target not in _TARGETS or not is_tensor(node):
        return None
    name, size = op_name(node.target), rank(node)
    axes = list(range(size))
    if name == "permute":
        return [axis_of(axis, node) for axis in argument(node, 1, "dims")]
    if name == "numpy_T" or name == "t":
        return axes[::-1]
    if name == "mT":
        return [*axes[:-2], axes[-1], axes[-2]]
    if name == "movedim":
        return _moved(node, size)
    a, b = axis_of(node.args[1], node), axis_of(node.args[2], node)
    axes[a], axes[b] = axes[b], axes[a]
    return axes


def _moved(node: fx.Node, size: int) -> list[int]:
    sources, targets = ([value] if isinstance(value, int) else list(value) for value in node.args[1:3])
    placed = {target % size: source % size for source, target in zip(sources, targets, strict=True)}
    rest = iter(axis for axis in range(size) if axis not in placed.values())
    return [placed[axis] if axis in placed else next(rest) for axis in range(size)]


def permute_of(edit: Rewriter, x: fx.Node, axes: list[int]) -> fx.Node:
    """x with dimension i taken from axes[i], in the simplest form."""
    if is_call(x, aten.permute.default):
        inner = permutation(x)
        if inner is not None:
            return permute_of(edit, x.args[0], [inner[axis] for axis in axes])
    if axes == sorted(axes):
        return x
    shape = [dims(x)[axis] for axis in axes]
    moved = [axis for axis in axes if dims(x)[axis] != 1]
    if moved == sorted(moved):
        reshaped = reshape_to(edit, x, shape)
        if reshaped is not None:
            return reshaped
    return edit.call(aten.permute.default, x, axes)


def _permute(node: fx.Node, edit: Rewriter) -> fx.Node | None:
    axes = permutation(node)
    if axes is None:
        return None
    source = node.args[0]
    moved = [axis for axis in axes if dims(source)[axis] != 1]
    settled = is_call(node, aten.permute.default) and list(argument(node, 1, "dims")) == axes and not node.kwargs
    if settled and moved != sorted(moved) and not is_call(source, aten.permute.default):
        return None
    new = permute_of(edit, source, axes)
    return None if settled and new.target is node.target and new.args == node.args else new


PERMUTE_RULES = (SimpleRule("permute", _TARGETS, _permute),)
PERMUTES = rule_pass("permutes", "canonicalize", "transpose, t, movedim to permute; chains of them cancel", PERMUTE_RULES)
