"""Rotary embedding of token-major heads, spelled as x * cos + turned(x) * sin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import fx

from mixplan.passes.canonicalize.reshapes import reshape_to
from mixplan.passes.fx_ops import ROPE
from mixplan.passes.patterns import Miss, argument, aten, axis_of, commuted, dims, is_call, rank, same_dims, slice_bounds
from mixplan.passes.rewriting import Rewriter
from mixplan.passes.rules import Rule

__all__ = ["Rope", "angles", "angles_problem", "part_of"]


@dataclass(frozen=True)
class Found:
    """x [1, T, H, D] and cos, sin that broadcast over H."""

    x: fx.Node
    cos: fx.Node
    sin: fx.Node
    style: str


class Rope(Rule[Found]):
    """x * cos + turned(x) * sin -> rope, where turned(x) is (-x2, x1) of halves ("half") or of neighbours ("interleaved")."""

    name: ClassVar[str] = "rope"
    targets: ClassVar[tuple[Any, ...]] = (aten.add.Tensor,)

    def pattern(self, node: fx.Node) -> Found | Miss | None:
        for straight, crossed in commuted(node):
            if not is_call(straight, aten.mul.Tensor) or not is_call(crossed, aten.mul.Tensor):
                continue
            for turned, sin in commuted(crossed):
                source = _turned(turned)
                if source is None:
                    continue
                for x, cos in commuted(straight):
                    if part_of(x) == source.part:
                        return Found(x, cos, sin, source.style)
                return Miss(f"{turned} turns {source.part[0]}, but {straight} does not multiply the same dimensions of it")
        return None

    def check(self, match: Found) -> Miss | None:
        width = dims(match.x)[-1]
        return angles_problem(match.x, match.cos, width) or angles_problem(match.x, match.sin, width)

    def rewrite(self, node: fx.Node, match: Found, edit: Rewriter) -> None:
        cos, sin = angles(edit, match.cos), angles(edit, match.sin)
        edit.replace(node, edit.call(ROPE, match.x, cos, sin, match.style))


def angles_problem(x: fx.Node, angle: Any, width: Any) -> Miss | None:
    """Why cos or sin does not fit heads x [1, T, H, D] with `width` angles a token."""
    if rank(x) != 4:
        return Miss(f"{x} has {rank(x)} dimensions; the fused op takes heads [1, T, H, D]")
    if not isinstance(angle, fx.Node) or dims(angle) != (1, dims(x)[1], 1, width):
        return Miss(f"{angle} has shape {list(dims(angle))}, not [1, T, 1, {width}]")
    return None


def angles(edit: Rewriter, angle: fx.Node) -> fx.Node:
    """cos or sin [1, T, 1, D] as [1, T, D]."""
    _, tokens, _, width = dims(angle)
    reshaped = reshape_to(edit, angle, (1, tokens, width))
    return angle if reshaped is None else reshaped


def part_of(x: Any) -> tuple[Any, Any, Any]:
    """(source, start, stop): which of whose last dimensions a node is, itself all of them where it is no slice."""
    bounds = slice_bounds(x)
    if bounds is not None and bounds[1] == rank(x) - 1 and bounds[4] == 1:
        return bounds[0], bounds[2], bounds[3]
    return x, 0, dims(x)[-1] if dims(x) else None


@dataclass(frozen=True)
class _Turned:
    """Dimensions start..stop of a source (`part`), with each pair (a, b) replaced by (-b, a)."""

    part: tuple[Any, Any, Any]
    style: str


def _turned(node: Any) -> _Turned | None:
    """Read the node as turned dimensions of something."""
    if is_call(node, aten.cat.default) and rank(node) >= 3:
        if axis_of(argument(node, 1, "dim", 0), node) != rank(node) - 1:
            return None
        halves = _negated_pair(node.args[0])
        if halves is None:
            return None
        second, first = (part_of(half) for half in halves)
        width = dims(node)[-1]
        if not isinstance(width, int) or second[0] is not first[0] or dims(first[0])[:-1] != dims(node)[:-1]:
            return None
        start = first[1]
        if first[1:] == (start, start + width // 2) and second[1:] == (start + width // 2, start + width):
            return _Turned((first[0], start, start + width), "half")
        return None
    return _turned_neighbours(node)


def _turned_neighbours(node: Any) -> _Turned | None:
    """The reshape of cat([-x[1::2], x[0::2]]) along a new last dimension."""
    if not is_call(node, aten.reshape.default) or not is_call(node.args[0], aten.cat.default):
        return None
    pairs = node.args[0]
    last, width = rank(node) - 1, dims(node)[-1]
    if axis_of(argument(pairs, 1, "dim", 0), pairs) != rank(pairs) - 1 or not isinstance(width, int):
        return None
    pieces = pairs.args[0]
    if len(pieces) != 2 or not all(is_call(piece, aten.reshape.default) for piece in pieces):
        return None
    halves = _negated_pair([piece.args[0] for piece in pieces])
    if halves is None:
        return None
    odd, even = (slice_bounds(half) for half in halves)
    if odd is None or even is None or odd[0] is not even[0] or not same_dims(odd[0], node):
        return None
    if even[1:] == (last, 0, width, 2) and odd[1:] == (last, 1, width, 2):
        return _Turned(part_of(even[0]), "interleaved")
    return None


def _negated_pair(pieces: Any) -> tuple[Any, Any] | None:
    """(b, a) where the pieces are -b and a."""
    if len(pieces) != 2 or not is_call(pieces[0], aten.neg.default):
        return None
    return pieces[0].args[0], pieces[1]
