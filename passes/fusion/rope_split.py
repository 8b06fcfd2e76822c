"""Rotary embedding spelled by halves: cat(a * cos - b * sin, b * cos + a * sin), with cos and sin of half the width."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import fx

from mixplan.passes.fusion.rope import angles, angles_problem, part_of
from mixplan.passes.fx_ops import ROPE
from mixplan.passes.patterns import Miss, argument, aten, axis_of, commuted, dims, is_call, rank
from mixplan.passes.rewriting import Rewriter
from mixplan.passes.rules import Rule

__all__ = ["RopeSplit"]


@dataclass(frozen=True)
class Found:
    """The halves a, b [1, T, H, D/2] before rotation, and cos, sin [1, T, 1, D/2]."""

    a: fx.Node
    b: fx.Node
    cos: fx.Node
    sin: fx.Node


class RopeSplit(Rule[Found]):
    """cat(a cos - b sin, b cos + a sin) -> rope(cat(a, b), (cos, cos), (sin, sin), "half").

    cat(a, b) is x itself where a and b are its halves. DeepSeek takes neighbours for a and b but writes halves; the cat then stays, and
    puts them in order.
    """

    name: ClassVar[str] = "rope_split"
    targets: ClassVar[tuple[Any, ...]] = (aten.cat.default,)

    def pattern(self, node: fx.Node) -> Found | Miss | None:
        pieces = node.args[0]
        if len(pieces) != 2 or axis_of(argument(node, 1, "dim", 0), node) != rank(node) - 1:
            return None
        first, second = pieces
        if not is_call(first, aten.sub.Tensor) or not is_call(second, aten.add.Tensor):
            return None
        if not all(is_call(term, aten.mul.Tensor) for term in (*first.args[:2], *second.args[:2])):
            return None
        for a, cos in commuted(first.args[0]):
            for b, sin in commuted(first.args[1]):
                for left, right in commuted(second):
                    if set(left.args[:2]) == {b, cos} and set(right.args[:2]) == {a, sin}:
                        return Found(a, b, cos, sin) if rank(cos) == rank(a) and dims(cos)[2:3] == (1,) else Found(cos, sin, a, b)
        return Miss("the halves are not a cos - b sin and b cos + a sin of the same a, b, cos and sin")

    def check(self, match: Found) -> Miss | None:
        width = dims(match.a)[-1]
        if dims(match.a) != dims(match.b):
            return Miss(f"the halves have shapes {list(dims(match.a))} and {list(dims(match.b))}")
        return angles_problem(match.a, match.cos, width) or angles_problem(match.a, match.sin, width)

    def rewrite(self, node: fx.Node, match: Found, edit: Rewriter) -> None:
        x = _whole(match.a, match.b, edit)
        cos, sin = (angles(edit, angle) for angle in (match.cos, match.sin))
        wide = [edit.call(aten.cat.default, [angle, angle], 2) for angle in (cos, sin)]
        edit.replace(node, edit.call(ROPE, x, *wide, "half"))


def _whole(a: fx.Node, b: fx.Node, edit: Rewriter) -> fx.Node:
    """a and b side by side: x where they are its two halves along the last dimension, a cat otherwise."""
    first, second = part_of(a), part_of(b)
    if first[0] is second[0] and first[2] == second[1]:
        source, start, stop = first[0], first[1], second[2]
        return source if (start, stop) == (0, dims(source)[-1]) else edit.call(aten.slice.Tensor, source, rank(source) - 1, start, stop)
    return edit.call(aten.cat.default, [a, b], rank(a) - 1)
