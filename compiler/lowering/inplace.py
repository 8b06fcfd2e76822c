"""Ops that write into their input: lowered as the op that gives a new tensor, then the names that meant the old one are bound anew."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any

import torch
from torch import fx

from mixplan.compiler.lowering.context import Context
from mixplan.compiler.lowering.indexing import select_scatter, slice_scatter
from mixplan.compiler.lowering.operands import Operand
from mixplan.compiler.lowering.where import op_name

__all__ = ["copy_", "functional", "is_inplace", "write_back"]

_SAME = ("aten.alias", "aten.detach", "aten.contiguous", "aten.to")
_RESHAPES = ("aten.view", "aten.reshape", "aten.unsqueeze", "aten.squeeze", "aten.flatten", "aten.unflatten", "aten._unsafe_view")


def is_inplace(node: fx.Node) -> bool:
    """Whether the op writes into its first argument."""
    schema = getattr(node.target, "_schema", None)
    return bool(schema is not None and schema.is_mutable and schema.name.endswith("_") and not schema.name.endswith("__"))


def functional(target: Any) -> Any:
    """The op that gives a new tensor instead, of the same overload where there is one."""
    name = target._schema.name.partition("::")[2].rstrip("_")
    packet = getattr(torch.ops.aten, name)
    return getattr(packet, target._overloadname, None) or packet.default


def copy_(c: Context, x: Operand, src: Operand, *_: Any) -> Operand:
    """src in x's shape and dtype."""
    return c.expand(c.ref(src, c.dtype), c.shape)


def write_back(c: Context, env: MutableMapping[fx.Node, Operand], node: fx.Node, value: Operand) -> None:
    """Bind `node` to a new value, and so on up the views that it was made by."""
    env[node] = value
    if node.op != "call_function" or not node.args or not isinstance(node.args[0], fx.Node):
        return
    base, (name, _) = node.args[0], op_name(node)
    if base not in env:
        return
    rest = node.args[1:]
    updated: Callable[[], Operand] | None = None
    if name == "aten.slice":
        updated = lambda: slice_scatter(c, env[base], value, *rest)  # noqa: E731
    elif name == "aten.select":
        updated = lambda: select_scatter(c, env[base], value, *rest)  # noqa: E731
    elif name in _SAME and c.shape_of(env[base]) == c.shape_of(value):
        updated = lambda: value  # noqa: E731
    elif name in _RESHAPES:
        updated = lambda: c.reshape(c.ref(value), c.shape_of(env[base]))  # noqa: E731
    elif name == "aten.transpose":
        updated = lambda: _transposed(c, value, *rest)  # noqa: E731
    if updated is not None:
        write_back(c, env, base, updated())


def _transposed(c: Context, value: Operand, a: int, b: int) -> Operand:
    ref = c.ref(value)
    axes = list(range(ref.rank))
    axes[a], axes[b] = axes[b], axes[a]
    return c.permute(ref, axes)
