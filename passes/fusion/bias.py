"""A constant vector added to a linear layer's output is its bias."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import fx

from mixplan.passes.fusion.linear_parts import LinearParts, make_linear, parts_of
from mixplan.passes.patterns import Miss, aten, commuted, dims, is_constant, is_tensor
from mixplan.passes.rewriting import Rewriter
from mixplan.passes.rules import Rule

__all__ = ["Bias"]


@dataclass(frozen=True)
class Found:
    """The linear node, its parts, and the vector [N]."""

    linear: fx.Node
    parts: LinearParts
    vector: fx.Node


class Bias(Rule[Found]):
    """linear(x, w) + b -> linear(x, w, b)."""

    name: ClassVar[str] = "bias"
    targets: ClassVar[tuple[Any, ...]] = (aten.add.Tensor,)

    def pattern(self, node: fx.Node) -> Found | Miss | None:
        for linear, vector in commuted(node):
            parts = parts_of(linear)
            if parts is None or not is_tensor(vector) or not is_constant(vector):
                continue
            if dims(vector) != dims(linear)[-1:]:
                return Miss(f"the constant {vector} has shape {list(dims(vector))}, not [{dims(linear)[-1]}]")
            return Found(linear, parts, vector)
        return None

    def check(self, match: Found) -> Miss | None:
        if len(match.linear.users) > 1:
            return Miss(f"{match.linear} is also used without the bias")
        return Miss(f"{match.linear} adds a residual already") if match.parts.residual is not None else None

    def rewrite(self, node: fx.Node, match: Found, edit: Rewriter) -> None:
        old = match.parts.bias
        bias = match.vector if old is None else edit.call(aten.add.Tensor, old, match.vector)
        edit.replace(node, make_linear(edit, replace(match.parts, bias=bias)))
