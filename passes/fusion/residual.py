"""The residual stream is added by the linear layer that comes before the addition."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import fx

from mixplan.passes.fusion.linear_parts import LinearParts, make_linear, parts_of
from mixplan.passes.patterns import Miss, aten, commuted, dims, is_tensor, same_dims
from mixplan.passes.rewriting import Rewriter
from mixplan.passes.rules import Rule

__all__ = ["Residual"]


@dataclass(frozen=True)
class Found:
    """The linear node, its parts, and what is added to it."""

    linear: fx.Node
    parts: LinearParts
    other: fx.Node


class Residual(Rule[Found]):
    """linear(x) + r -> linear(x, residual=r). Of two linear operands the later one takes the other.

    Where the linear layer has a residual already that is a linear layer of its own (parallel attention and MLP), r goes on to that one.
    """

    name: ClassVar[str] = "residual"
    targets: ClassVar[tuple[Any, ...]] = (aten.add.Tensor,)

    def pattern(self, node: fx.Node) -> Found | Miss | None:
        candidates = [(a, b) for a, b in commuted(node) if parts_of(a) is not None and is_tensor(b)]
        if not candidates:
            return None
        candidates.sort(key=lambda pair: pair[0], reverse=True)
        miss: Miss | None = None
        for linear, other in candidates:
            parts = parts_of(linear)
            if parts is None:
                continue
            if linear is other:
                miss = miss or Miss(f"{linear} is added to itself")
            elif not same_dims(linear, other):
                miss = miss or Miss(f"{other} has shape {list(dims(other))}, the linear layer {list(dims(linear))}")
            elif len(linear.users) > 1:
                users = ", ".join(user.name for user in linear.users if user is not node)
                miss = miss or Miss(f"{linear} is also used without the residual, by {users}")
            elif parts.residual is not None and _takes(parts.residual) is None:
                miss = miss or Miss(f"{linear} adds a residual already")
            else:
                return Found(linear, parts, other)
        return miss

    def rewrite(self, node: fx.Node, match: Found, edit: Rewriter) -> None:
        residual = match.other
        if match.parts.residual is not None:
            inner = _takes(match.parts.residual)
            assert inner is not None
            residual = make_linear(edit, replace(inner, residual=residual))
        edit.replace(node, make_linear(edit, replace(match.parts, residual=residual)))


def _takes(node: fx.Node) -> LinearParts | None:
    """The parts of a linear node that nothing else uses and that has no residual yet."""
    parts = parts_of(node)
    return parts if parts is not None and parts.residual is None and len(node.users) == 1 else None
