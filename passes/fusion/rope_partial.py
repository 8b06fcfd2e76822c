"""Partial rotary embedding: the dimensions that are not rotated pass through the fused op."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import fx

from mixplan.passes.fx_ops import ROPE
from mixplan.passes.patterns import Miss, argument, aten, axis_of, dims, is_call, rank, slice_bounds
from mixplan.passes.rewriting import Rewriter
from mixplan.passes.rules import Rule

__all__ = ["RopePartial"]


@dataclass(frozen=True)
class Found:
    """All dimensions x [1, T, H, D], and the rope of the first ones."""

    x: fx.Node
    rope: fx.Node


class RopePartial(Rule[Found]):
    """cat(rope(x[..., :Dr]), x[..., Dr:]) -> rope(x)."""

    name: ClassVar[str] = "rope_partial"
    targets: ClassVar[tuple[Any, ...]] = (aten.cat.default,)

    def pattern(self, node: fx.Node) -> Found | Miss | None:
        pieces = node.args[0]
        if len(pieces) != 2 or axis_of(argument(node, 1, "dim", 0), node) != rank(node) - 1:
            return None
        if not is_call(pieces[0], ROPE):
            behind = Miss("the rotated dimensions stand behind the others; the fused op rotates the first ones")
            return behind if is_call(pieces[1], ROPE) else None
        head, tail = slice_bounds(pieces[0].args[0]), slice_bounds(pieces[1])
        if head is None or tail is None or head[0] is not tail[0]:
            return Miss("what passes through is not the rest of what is rotated")
        last, width, all_of = rank(node) - 1, dims(pieces[0])[-1], dims(head[0])[-1]
        if head[1:] != (last, 0, width, 1) or tail[1:] != (last, width, all_of, 1):
            return Miss(f"the slices {head[2:]} and {tail[2:]} do not make up all {all_of} dimensions in order")
        return Found(head[0], pieces[0])

    def check(self, match: Found) -> Miss | None:
        return Miss(f"{match.rope} has other users") if len(match.rope.users) > 1 else None

    def rewrite(self, node: fx.Node, match: Found, edit: Rewriter) -> None:
        edit.replace(node, edit.call(ROPE, match.x, *match.rope.args[1:]))
