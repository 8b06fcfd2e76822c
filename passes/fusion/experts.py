"""Experts: gate and up rows that alternate are sorted in the weight, so that both halves of the output are contiguous.

Gated experts have no fused op; where one is recognised, that is recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import fx

from mixplan.passes.decision import DECISION
from mixplan.passes.fusion.gated import activation_of
from mixplan.passes.fx_ops import GROUPED_LINEAR
from mixplan.passes.patterns import Miss, aten, commuted, dims, is_call, rank, slice_bounds
from mixplan.passes.rewriting import Rewriter
from mixplan.passes.rules import Rule

__all__ = ["ExpertGate", "SortExpertRows"]


@dataclass(frozen=True)
class Found:
    """The experts' first layer and the slices [..., 0::2] and [..., 1::2] of its output."""

    grouped: fx.Node
    even: fx.Node
    odd: fx.Node


class SortExpertRows(Rule[Found]):
    """slices [0::2] and [1::2] of grouped_linear(x, W) -> the halves of grouped_linear(x, W sorted), even rows first."""

    name: ClassVar[str] = "sort_expert_rows"
    targets: ClassVar[tuple[Any, ...]] = (GROUPED_LINEAR,)

    def pattern(self, node: fx.Node) -> Found | Miss | None:
        width, last = dims(node)[-1], rank(node) - 1
        bounds = {user: slice_bounds(user) for user in node.users}
        strided = {found[2]: user for user, found in bounds.items() if found is not None and found[1] == last and found[4] == 2}
        if not strided:
            return None
        if set(strided) != {0, 1} or len(node.users) != 2 or any(found is None or found[3] != width for found in bounds.values()):
            return Miss("the output is taken apart in another way than even and odd columns")
        return Found(node, strided[0], strided[1])

    def rewrite(self, node: fx.Node, match: Found, edit: Rewriter) -> None:
        x, ids, weight, bias = (*node.args, None)[:4]
        width, axis = int(dims(node)[-1]), rank(node) - 1
        sorted_bias = None if bias is None else _sorted(edit, bias, width)
        new = edit.call(GROUPED_LINEAR, x, ids, _sorted(edit, weight, width), sorted_bias)
        if DECISION in node.meta:
            new.meta[DECISION] = node.meta[DECISION]
        half = width // 2
        edit.replace(match.even, edit.call(aten.slice.Tensor, new, axis, 0, half))
        edit.replace(match.odd, edit.call(aten.slice.Tensor, new, axis, half, width))


class ExpertGate(Rule[None]):
    """act(gate) * up over one grouped_linear: known, and left as it is."""

    name: ClassVar[str] = "expert_gate"
    targets: ClassVar[tuple[Any, ...]] = (aten.mul.Tensor,)

    def pattern(self, node: fx.Node) -> Miss | None:
        for activated, other in commuted(node):
            act = activation_of(activated)
            if act is None:
                continue
            gate, up = slice_bounds(act[0]), slice_bounds(other)
            if gate is not None and up is not None and gate[0] is up[0] and is_call(gate[0], GROUPED_LINEAR):
                return Miss("no fused op takes gated experts; activation and product stay elementwise")
        return None

    def rewrite(self, node: fx.Node, match: None, edit: Rewriter) -> None:
        """Never reached: the pattern gives no match."""


def _sorted(edit: Rewriter, constant: fx.Node, width: int) -> fx.Node:
    halves = [edit.call(aten.slice.Tensor, constant, 1, start, width, 2) for start in (0, 1)]
    return edit.call(aten.cat.default, halves, 1)
