"""A number that a linear layer's output is multiplied with goes into its weight, where nothing else reads the weight."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import fx

from mixplan.passes.decision import takes_over
from mixplan.passes.fusion.linear_parts import LinearParts, make_linear, parts_of
from mixplan.passes.patterns import Miss, aten, commuted, scalar_of
from mixplan.passes.rewriting import Rewriter
from mixplan.passes.rules import Rule

__all__ = ["Scale"]


@dataclass(frozen=True)
class Found:
    """The linear node, its parts, and the number."""

    linear: fx.Node
    parts: LinearParts
    number: float


class Scale(Rule[Found]):
    """linear(x, w, b) * c -> linear(x, c w, c b). A scaled weight quantizes to the same codes."""

    name: ClassVar[str] = "scale"
    targets: ClassVar[tuple[Any, ...]] = (aten.mul.Tensor, aten.div.Tensor)

    def pattern(self, node: fx.Node) -> Found | Miss | None:
        division = node.target is aten.div.Tensor
        for linear, factor in [node.args[:2]] if division else commuted(node):
            parts, number = parts_of(linear), scalar_of(factor)
            if parts is not None and number is not None:
                return Found(linear, parts, 1 / number if division else number)
        return None

    def check(self, match: Found) -> Miss | None:
        if len(match.linear.users) > 1:
            return Miss(f"{match.linear} is also used unscaled")
        if match.parts.residual is not None:
            return Miss(f"{match.linear} adds a residual, which would be scaled as well")
        if len(match.parts.weight.users) > 1:
            return Miss(f"the weight {match.parts.weight} is read by another layer; scaling it would store it twice")
        if takes_over(match.parts.decision):
            return Miss(f"the weight {match.parts.weight} is taken over as the checkpoint has it")
        return None

    def rewrite(self, node: fx.Node, match: Found, edit: Rewriter) -> None:
        parts = match.parts
        weight = edit.call(aten.mul.Tensor, parts.weight, match.number)
        bias = None if parts.bias is None else edit.call(aten.mul.Tensor, parts.bias, match.number)
        edit.replace(node, make_linear(edit, replace(parts, weight=weight, bias=bias)))
