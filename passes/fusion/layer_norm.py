"""LayerNorm: aten.layer_norm and native_layer_norm, and the ones spelled by hand from a mean and a mean square or a variance."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import fx

from mixplan.passes.fusion.rms_norm import mean_over_last, plus_eps, reciprocal_root
from mixplan.passes.fx_ops import LAYER_NORM, RMS_NORM
from mixplan.passes.patterns import Miss, argument, aten, is_call
from mixplan.passes.rewriting import Rewriter
from mixplan.passes.rules import Rule

__all__ = ["AtenLayerNorm", "CentredRmsNorm", "VarianceNorm"]


@dataclass(frozen=True)
class Found:
    """x [..., D], the optional weight and bias [D], eps."""

    x: fx.Node
    weight: fx.Node | None
    bias: fx.Node | None
    eps: float


class _LayerNorm(Rule[Found]):
    def rewrite(self, node: fx.Node, match: Found, edit: Rewriter) -> None:
        edit.replace(node, edit.call(LAYER_NORM, match.x, match.weight, match.bias, match.eps))


class AtenLayerNorm(_LayerNorm):
    """aten.layer_norm, or the first output of aten.native_layer_norm, over the last dimension."""

    name: ClassVar[str] = "aten_layer_norm"
    targets: ClassVar[tuple[Any, ...]] = (aten.layer_norm.default, operator.getitem)

    def pattern(self, node: fx.Node) -> Found | Miss | None:
        call = node
        if node.target is operator.getitem:
            call = node.args[0]
            if not is_call(call, aten.native_layer_norm.default) or node.args[1] != 0:
                return None
        shape = call.args[1]
        if len(shape) != 1:
            return Miss(f"the norm is over the last {len(shape)} dimensions; the fused op takes one")
        return Found(call.args[0], argument(call, 2, "weight"), argument(call, 3, "bias"), float(argument(call, 4, "eps", 1e-5)))


class CentredRmsNorm(_LayerNorm):
    """rms_norm(x - mean(x)) -> layer_norm(x): the mean square of what is centred is the variance."""

    name: ClassVar[str] = "layer_norm"
    targets: ClassVar[tuple[Any, ...]] = (RMS_NORM,)

    def pattern(self, node: fx.Node) -> Found | Miss | None:
        centred, weight, eps = node.args
        x = _centred(centred)
        if x is None or isinstance(x, Miss):
            return x
        return Found(x, weight, None, eps)


class VarianceNorm(_LayerNorm):
    """(x - mean(x)) / sqrt(var(x) + eps) -> layer_norm(x)."""

    name: ClassVar[str] = "variance_norm"
    targets: ClassVar[tuple[Any, ...]] = (aten.mul.Tensor, aten.div.Tensor)

    def pattern(self, node: fx.Node) -> Found | Miss | None:
        for centred, under in reciprocal_root(node):
            split = plus_eps(under)
            if split is None or not is_call(split[0], aten.var.correction, aten.var.dim):
                continue
            x, variance = _centred(centred), split[0]
            if x is None or isinstance(x, Miss):
                return x
            if variance.args[0] is not x:
                return Miss(f"the variance is that of {variance.args[0]}, the mean that of {x}")
            by_flag = is_call(variance, aten.var.dim)
            if argument(variance, 2, "unbiased", True) if by_flag else variance.kwargs.get("correction", 1) != 0:
                return Miss("the variance is the unbiased one (divided by D - 1)")
            axes = list(argument(variance, 1, "dim") or ())
            if axes not in ([-1], [len(x.meta["val"].shape) - 1]) or not (argument(variance, 3, "keepdim", False)):
                return Miss(f"the variance is over dimensions {axes}, or drops them")
            return Found(x, None, None, split[1])
        return None


def _centred(node: Any) -> fx.Node | Miss | None:
    """x where the node is x - mean(x) over the last dimension."""
    if not is_call(node, aten.sub.Tensor):
        return None
    x, mean = node.args[0], mean_over_last(node.args[1])
    if mean is None:
        return None
    if mean[1] is not None:
        return Miss(mean[1])
    if mean[0] is not x:
        return Miss(f"the mean is that of {mean[0]}, but it is taken from {x}")
    return x if isinstance(x, fx.Node) else None
