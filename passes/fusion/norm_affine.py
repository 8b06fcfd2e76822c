"""A norm takes up the weight that its output is multiplied with, and LayerNorm the bias that is added."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import fx

from mixplan.passes.canonicalize.reshapes import reshape_to
from mixplan.passes.fx_ops import LAYER_NORM, RMS_NORM
from mixplan.passes.patterns import Miss, aten, commuted, dims, is_call, is_constant
from mixplan.passes.rewriting import Rewriter
from mixplan.passes.rules import Rule

__all__ = ["NormBias", "NormWeight"]


@dataclass(frozen=True)
class Found:
    """The norm and the constant vector [D]."""

    norm: fx.Node
    vector: fx.Node


class NormWeight(Rule[Found]):
    """norm(x) * w -> norm(x, w), for a constant w over the last dimension. Gemma's 1 + w is such a constant too."""

    name: ClassVar[str] = "norm_weight"
    targets: ClassVar[tuple[Any, ...]] = (aten.mul.Tensor,)

    def pattern(self, node: fx.Node) -> Found | Miss | None:
        for norm, vector in commuted(node):
            if is_call(norm, RMS_NORM, LAYER_NORM) and is_constant(vector):
                return _vector(norm, vector, "weight")
        return None

    def check(self, match: Found) -> Miss | None:
        return _free(match.norm, match.norm.args[1:-1], "weight")

    def rewrite(self, node: fx.Node, match: Found, edit: Rewriter) -> None:
        vector = reshape_to(edit, match.vector, dims(match.norm)[-1:])
        edit.replace(node, edit.call(match.norm.target, match.norm.args[0], vector, *match.norm.args[2:]))


class NormBias(Rule[Found]):
    """layer_norm(x, w) + b -> layer_norm(x, w, b)."""

    name: ClassVar[str] = "norm_bias"
    targets: ClassVar[tuple[Any, ...]] = (aten.add.Tensor,)

    def pattern(self, node: fx.Node) -> Found | Miss | None:
        for norm, vector in commuted(node):
            if is_call(norm, LAYER_NORM) and is_constant(vector):
                return _vector(norm, vector, "bias")
        return None

    def check(self, match: Found) -> Miss | None:
        return _free(match.norm, match.norm.args[2:3], "bias")

    def rewrite(self, node: fx.Node, match: Found, edit: Rewriter) -> None:
        x, weight, _, eps = match.norm.args
        vector = reshape_to(edit, match.vector, dims(match.norm)[-1:])
        edit.replace(node, edit.call(LAYER_NORM, x, weight, vector, eps))


def _vector(norm: fx.Node, vector: fx.Node, role: str) -> Found | Miss:
    shape = dims(vector)
    if shape[-1:] != dims(norm)[-1:] or any(size != 1 for size in shape[:-1]):
        return Miss(f"the {role} {vector} has shape {list(shape)}; the fused op takes one number for each of the last {dims(norm)[-1]}")
    return Found(norm, vector)


def _free(norm: fx.Node, taken: tuple[Any, ...], role: str) -> Miss | None:
    if any(value is not None for value in taken):
        return Miss(f"{norm} has a {role} already")
    if len(norm.users) > 1:
        return Miss(f"{norm} is also used without the {role}, by {', '.join(sorted(user.name for user in norm.users)[1:])}")
    return None
