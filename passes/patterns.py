"""Small questions about fx nodes, and the two answers of a pattern that did not match."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import fx

__all__ = [
    "Dim",
    "Miss",
    "argument",
    "aten",
    "axis_of",
    "commuted",
    "dims",
    "dtype_of",
    "is_call",
    "is_constant",
    "is_parameter",
    "is_tensor",
    "mark_constants",
    "only_user",
    "rank",
    "same_dims",
    "scalar_of",
    "slice_bounds",
    "source_line",
]

aten = torch.ops.aten
_CONSTANT = "constant"
Dim: TypeAlias = int | str


@dataclass(frozen=True)
class Miss:
    """The pattern is there, but something keeps it from being rewritten. A pattern that is not there at all gives None instead."""

    reason: str


def is_call(node: Any, *targets: Any) -> bool:
    """Whether `node` is a call of one of `targets`."""
    return isinstance(node, fx.Node) and node.op == "call_function" and node.target in targets


def argument(node: fx.Node, index: int, name: str, default: Any = None) -> Any:
    """An argument of a call, whether it was given by position or by name."""
    if index < len(node.args):
        return node.args[index]
    return node.kwargs.get(name, default)


def commuted(node: fx.Node) -> Iterator[tuple[Any, Any]]:
    """The two operands of a commutative binary op, in both orders."""
    a, b = node.args[0], node.args[1]
    yield a, b
    yield b, a


def dims(node: Any) -> tuple[Dim, ...]:
    """A tensor node's shape with symbolic dimensions as text, so that comparing two shapes never specialises a symbol."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else node
    if not isinstance(value, torch.Tensor):
        return ()
    return tuple(size if isinstance(size, int) else str(size.node.expr) for size in value.shape)


def same_dims(a: Any, b: Any) -> bool:
    """Whether both are tensors of the same shape."""
    return is_tensor(a) and is_tensor(b) and dims(a) == dims(b)


def is_tensor(node: Any) -> bool:
    """Whether the node's value is one tensor."""
    return isinstance(node, fx.Node) and isinstance(node.meta.get("val"), torch.Tensor)


def rank(node: Any) -> int:
    """Number of dimensions of a tensor node."""
    return len(dims(node))


def axis_of(axis: int, node: Any) -> int:
    """A dimension number of `node`, counted from the front."""
    return axis % max(rank(node), 1)


def dtype_of(node: Any) -> torch.dtype | None:
    """A tensor node's dtype."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return value.dtype if isinstance(value, torch.Tensor) else None


def scalar_of(value: Any) -> float | None:
    """The number that an argument is, None if it is no plain number."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    return None


def only_user(node: fx.Node) -> fx.Node | None:
    """The node's user, where it has exactly one."""
    return next(iter(node.users)) if len(node.users) == 1 else None


def is_parameter(node: Any) -> bool:
    """Whether the node reads one tensor of the module."""
    return isinstance(node, fx.Node) and node.op == "get_attr"


def is_constant(node: Any) -> bool:
    """Whether the node is computed from the module's tensors alone."""
    if not isinstance(node, fx.Node):
        return False
    known: bool | None = node.meta.get(_CONSTANT)
    return _mark(node) if known is None else known


def mark_constants(graph: fx.Graph) -> None:
    """Work out `is_constant` of every node anew, inputs first, so that asking about a deep graph needs no recursion."""
    for node in graph.nodes:
        _mark(node)


def _mark(node: fx.Node) -> bool:
    if node.op == "call_function":
        known = bool(node.all_input_nodes) and all(is_constant(source) for source in node.all_input_nodes)
    else:
        known = node.op == "get_attr"
    node.meta[_CONSTANT] = known
    return known


def slice_bounds(node: Any) -> tuple[fx.Node, int, int, int, int] | None:
    """(source, axis, start, stop, step) of an aten.slice with static bounds along a static dimension, all non-negative and clipped."""
    if not is_call(node, aten.slice.Tensor):
        return None
    source = node.args[0]
    axis = axis_of(argument(node, 1, "dim", 0), source)
    size: Any = dims(source)[axis]
    start, stop, step = argument(node, 2, "start"), argument(node, 3, "end"), argument(node, 4, "step", 1)
    start = 0 if start is None else start
    stop = size if stop is None else stop
    if not all(isinstance(number, int) for number in (size, start, stop, step)):
        return None
    start = max(start + size, 0) if start < 0 else min(start, size)
    stop = max(stop + size, 0) if stop < 0 else min(stop, size)
    return source, axis, start, max(stop, start), step


def source_line(node: fx.Node) -> str:
    """The model's source line that the node comes from, "" where it is not known."""
    trace = node.meta.get("stack_trace") or ""
    lines = [line.strip() for line in trace.splitlines() if line.strip()]
    files = [index for index, line in enumerate(lines) if line.startswith("File ")]
    return " ".join(lines[files[-1] : files[-1] + 2]) if files else ""
