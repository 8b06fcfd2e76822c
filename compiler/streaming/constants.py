"""The constants of one segment: weights read when the segment starts, and what the graph computes from them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_aggregate

from mixplan.compiler.weights.base import WeightSource
from mixplan.passes.rewriting import tensor_of

__all__ = ["call", "load_constants", "lookup"]


def load_constants(module: fx.GraphModule, weights: WeightSource, wanted: tuple[fx.Node, ...]) -> dict[fx.Node, Any]:
    """The values of `wanted`. Every weight that they need is read once, and what they are made of is dropped as soon as it can be."""
    last: dict[fx.Node, int] = {}
    for index, node in enumerate(wanted):
        for part in _parts(node):
            last[part] = index
    known: dict[fx.Node, Any] = {}
    for index, node in enumerate(wanted):
        # Inputs first, without recursion: expressions may be deep.
        for part in _parts(node):
            if part not in known:
                known[part] = _value(module, weights, part, known)
        for part in [one for one in known if last[one] <= index and one not in wanted]:
            del known[part]
    return known


def _parts(node: fx.Node) -> Iterator[fx.Node]:
    """A constant and all that it is computed from, inputs first."""
    seen: dict[fx.Node, None] = {}
    pending = [node]
    while pending:
        one = pending[-1]
        missing = [source for source in one.all_input_nodes if source not in seen]
        if missing:
            pending.extend(missing)
        else:
            seen.setdefault(one)
            pending.pop()
    yield from seen


def _value(module: fx.GraphModule, weights: WeightSource, node: fx.Node, known: dict[fx.Node, Any]) -> Any:
    if node.op != "get_attr":
        return call(node, known)[2]
    tensor = tensor_of(module, str(node.target))
    if tensor.device.type != "meta":
        return tensor
    return _tensor(weights.read(str(node.target)))


def call(node: fx.Node, known: dict[fx.Node, Any]) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
    """A node's arguments and its value."""

    def real(value: Any) -> Any:
        if isinstance(value, fx.Node):
            return known[value]
        # The capture ran on the meta device.
        return torch.device("cpu") if isinstance(value, torch.device) else value

    args, kwargs = map_aggregate(node.args, real), map_aggregate(node.kwargs, real)
    if node.op == "call_method":
        owner, *rest = args
        return args, kwargs, getattr(owner, str(node.target))(*rest, **kwargs)
    return args, kwargs, node.target(*args, **kwargs)


def lookup(weights: WeightSource, name: str, ids: Tensor) -> Tensor:
    """Rows of a table, without the table."""
    unique, where = torch.unique(ids, return_inverse=True)
    wanted = unique.tolist()
    parts, start = [], 0
    while start < len(wanted):
        stop = start + 1
        while stop < len(wanted) and wanted[stop] == wanted[stop - 1] + 1:
            stop += 1
        parts.append(_tensor(weights.read_rows(name, wanted[start], wanted[stop - 1] + 1)))
        start = stop
    return torch.cat(parts)[where]


def _tensor(array: Any) -> Tensor:
    return torch.from_numpy(array if array.flags.writeable else array.copy())
