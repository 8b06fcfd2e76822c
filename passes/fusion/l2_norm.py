"""L2 normalisation, x / sqrt(sum(x^2) + eps), is RMSNorm times 1/sqrt(D): the sum is D times the mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import fx

from mixplan.passes.fusion.rms_norm import plus_eps, reciprocal_root, square_of
from mixplan.passes.fx_ops import RMS_NORM
from mixplan.passes.patterns import Miss, argument, aten, dims, is_call
from mixplan.passes.rewriting import Rewriter
from mixplan.passes.rules import Rule

__all__ = ["L2Norm"]


@dataclass(frozen=True)
class Found:
    """x [..., D], eps and D."""

    x: fx.Node
    eps: float
    size: int


class L2Norm(Rule[Found]):
    """x * rsqrt(sum(x^2) + eps) -> rms_norm(x, None, eps / D) / sqrt(D)."""

    name: ClassVar[str] = "l2_norm"
    targets: ClassVar[tuple[Any, ...]] = (aten.mul.Tensor, aten.div.Tensor)

    def pattern(self, node: fx.Node) -> Found | Miss | None:
        for x, under in reciprocal_root(node):
            split = plus_eps(under)
            if split is None or not is_call(split[0], aten.sum.dim_IntList) or square_of(split[0].args[0]) is not x:
                continue
            total, size = split[0], dims(x)[-1]
            axes = list(argument(total, 1, "dim") or ())
            if axes not in ([-1], [len(dims(x)) - 1]) or not argument(total, 2, "keepdim", False):
                return Miss(f"the sum of squares is over dimensions {axes}, or drops them")
            if not isinstance(size, int):
                return Miss("the size of the last dimension is not static")
            return Found(x, split[1], size)
        return None

    def rewrite(self, node: fx.Node, match: Found, edit: Rewriter) -> None:
        norm = edit.call(RMS_NORM, match.x, None, match.eps / match.size)
        edit.replace(node, edit.call(aten.mul.Tensor, norm, match.size**-0.5))
