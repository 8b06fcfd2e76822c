"""view, flatten, unsqueeze and their like become `aten.reshape`, with -1 for the one dimension known only at the step."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from mixplan.passes.patterns import Dim, aten, dims, is_call, is_tensor
from mixplan.passes.rewriting import Rewriter
from mixplan.passes.rules import SimpleRule, rule_pass

__all__ = ["RESHAPES", "RESHAPE_RULES", "keeps_last", "reshape_to"]

_TARGETS = (
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten._reshape_alias.default,
    aten.flatten.using_ints,
    aten.unflatten.int,
    aten.unsqueeze.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.view_as.default,
    aten.reshape_as.default,
)


def reshape_to(edit: Rewriter, x: fx.Node, shape: Sequence[Dim]) -> fx.Node | None:
    """x in `shape`; x itself where it has it. None where more than one dimension is dynamic and no size node says how large it is."""
    if dims(x) == tuple(shape):
        return x
    if is_call(x, aten.reshape.default):
        return reshape_to(edit, x.args[0], shape)
    dynamic = [size for size in shape if not isinstance(size, int)]
    if 0 in shape:
        return None
    if len(dynamic) <= 1:
        return edit.call(aten.reshape.default, x, [size if isinstance(size, int) else -1 for size in shape])
    known: dict[Dim, int] = {size: axis for axis, size in reversed(list(enumerate(dims(x))))}
    if any(size not in known for size in dynamic):
        return None
    sizes = [size if isinstance(size, int) else edit.call(aten.sym_size.int, x, known[size]) for size in shape]
    return edit.call(aten.reshape.default, x, sizes)


def keeps_last(node: object) -> bool:
    """Whether the node is a reshape that leaves the last dimension as it is."""
    return (
        isinstance(node, fx.Node)
        and is_call(node, aten.reshape.default)
        and len(dims(node.args[0])) > 1
        and dims(node)[-1:] == dims(node.args[0])[-1:]
    )


def _reshape(node: fx.Node, edit: Rewriter) -> fx.Node | None:
    source = node.args[0]
    if not is_tensor(source) or not is_tensor(node):
        return None
    if is_call(node, aten.reshape.default) and not node.kwargs:
        simple = dims(source) != dims(node) and not is_call(source, aten.reshape.default)
        sizes = [size if isinstance(size, int) else -1 for size in dims(node)]
        if simple and (node.args[1] == sizes or sizes.count(-1) > 1):
            return None
    new = reshape_to(edit, source, dims(node))
    return None if new is node else new


RESHAPE_RULES = (SimpleRule("reshape", _TARGETS, _reshape),)
RESHAPES = rule_pass("reshapes", "canonicalize", "view, flatten, unsqueeze, squeeze to reshape; chains of them to one", RESHAPE_RULES)
