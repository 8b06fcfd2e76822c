"""Complex arithmetic in real numbers.

Some rotary embeddings multiply pairs as complex numbers. Each complex node becomes two real ones (real and imaginary part), so that nothing
behind the capture has to know complex types.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from mixplan.compiler.export.editing import insert
from mixplan.compiler.export.model_code import source_line
from mixplan.runtime.errors import UnsupportedError

__all__ = ["rewrite_complex"]

aten = torch.ops.aten
Pair = tuple[fx.Node, fx.Node]
# Ops that only move elements: applied to both parts with the same arguments.
_MOVES = frozenset("unsqueeze squeeze transpose permute expand slice select alias clone detach contiguous index repeat".split())
_RESHAPES = frozenset("view reshape flatten _unsafe_view".split())
_CASTS = frozenset("to _to_copy type_as".split())


def rewrite_complex(module: fx.GraphModule) -> int:
    """Rewrite in place; gives the number of nodes rewritten. UnsupportedError names a complex op that has no real form here."""
    pairs: dict[fx.Node, Pair] = {}
    count = 0
    for node in list(module.graph.nodes):
        value = node.meta.get("val")
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        name = node.target._schema.name.split("::")[1]
        if isinstance(value, torch.Tensor) and value.is_complex():
            pairs[node] = _pair(node, name, pairs)
            count += 1
        elif name == "view_as_real" and node.args[0] in pairs:
            node.replace_all_uses_with(insert(node, aten.stack.default, list(pairs[node.args[0]]), -1))
            count += 1
        elif any(n in pairs for n in node.all_input_nodes):
            raise _refused(node)
    if count:
        module.graph.eliminate_dead_code()
        module.recompile()
    return count


def _pair(node: fx.Node, name: str, pairs: dict[fx.Node, Pair]) -> Pair:
    first = node.args[0]
    if name == "polar":
        length, angle = node.args
        cos, sin = insert(node, aten.cos.default, angle), insert(node, aten.sin.default, angle)
        return insert(node, aten.mul.Tensor, length, cos), insert(node, aten.mul.Tensor, length, sin)
    if name == "complex":
        return first, node.args[1]
    if name == "view_as_complex":
        return insert(node, aten.select.int, first, -1, 0), insert(node, aten.select.int, first, -1, 1)
    if name in _CASTS and first in pairs:
        return pairs[first]
    if name in _MOVES or name in _RESHAPES:
        real, imaginary = pairs[first]
        return insert(node, node.target, real, *node.args[1:]), insert(node, node.target, imaginary, *node.args[1:])
    if name == "_conj":
        real, imaginary = pairs[first]
        return real, insert(node, aten.neg.default, imaginary)
    if name == "mul":
        return _product(node, first, node.args[1], pairs)
    raise _refused(node)


def _product(node: fx.Node, left: Any, right: Any, pairs: dict[fx.Node, Pair]) -> Pair:
    def mul(a: Any, b: Any) -> fx.Node:
        return insert(node, aten.mul.Tensor, a, b)

    if left in pairs and right in pairs:
        (a, b), (c, d) = pairs[left], pairs[right]
        real = insert(node, aten.sub.Tensor, mul(a, c), mul(b, d))
        return real, insert(node, aten.add.Tensor, mul(a, d), mul(b, c))
    number, other = (left, right) if left in pairs else (right, left)
    if isinstance(other, complex):
        raise _refused(node)
    return mul(pairs[number][0], other), mul(pairs[number][1], other)


def _refused(node: fx.Node) -> UnsupportedError:
    where = source_line(node)
    return UnsupportedError(
        f"node {node.name!r} ({node.target}) computes with complex numbers in a way that is not supported{f', at {where}' if where else ''}"
    )
