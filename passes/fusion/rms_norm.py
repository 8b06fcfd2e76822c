"""RMSNorm, in the spellings that models use: x * rsqrt(mean(x^2) + eps), x / sqrt(mean(x^2) + eps), and aten.rms_norm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import fx

from mixplan.passes.fx_ops import RMS_NORM
from mixplan.passes.patterns import Miss, argument, aten, commuted, dims, dtype_of, is_call, is_tensor, scalar_of
from mixplan.passes.rewriting import Rewriter
from mixplan.passes.rules import Rule

__all__ = ["AtenRmsNorm", "RmsNorm", "mean_over_last", "plus_eps", "reciprocal_root", "square_of"]


@dataclass(frozen=True)
class Found:
    """x [..., D] and eps."""

    x: fx.Node
    eps: float


class RmsNorm(Rule[Found]):
    """x * 1/sqrt(mean(x^2) + eps) -> rms_norm(x, None, eps). The weight is absorbed by NormWeight."""

    name: ClassVar[str] = "rms_norm"
    targets: ClassVar[tuple[Any, ...]] = (aten.mul.Tensor, aten.div.Tensor)

    def pattern(self, node: fx.Node) -> Found | Miss | None:
        miss: Miss | None = None
        for x, under in reciprocal_root(node):
            found = _match(x, under)
            if isinstance(found, Found):
                return found
            miss = miss or found
        return miss

    def rewrite(self, node: fx.Node, match: Found, edit: Rewriter) -> None:
        edit.replace(node, edit.call(RMS_NORM, match.x, None, match.eps))


class AtenRmsNorm(Rule[Found]):
    """aten.rms_norm over the last dimension."""

    name: ClassVar[str] = "aten_rms_norm"
    targets: ClassVar[tuple[Any, ...]] = (aten.rms_norm.default,)

    def pattern(self, node: fx.Node) -> Found | Miss | None:
        x, shape = node.args[0], node.args[1]
        if len(shape) != 1:
            return Miss(f"the norm is over the last {len(shape)} dimensions; the fused op takes one")
        eps = argument(node, 3, "eps")
        return Found(x, torch.finfo(torch.float32).eps if eps is None else float(eps))

    def rewrite(self, node: fx.Node, match: Found, edit: Rewriter) -> None:
        edit.replace(node, edit.call(RMS_NORM, match.x, argument(node, 2, "weight"), match.eps))


def reciprocal_root(node: fx.Node) -> list[tuple[Any, Any]]:
    """(x, v) for each reading of the node as x / sqrt(v)."""
    if is_call(node, aten.div.Tensor):
        root = node.args[1]
        if is_call(root, aten.sqrt.default):
            return [(node.args[0], root.args[0])]
        if is_call(root, aten.pow.Tensor_Scalar) and scalar_of(root.args[1]) == 0.5:
            return [(node.args[0], root.args[0])]
        return []
    found = []
    for x, root in commuted(node):
        if is_call(root, aten.rsqrt.default) or (is_call(root, aten.pow.Tensor_Scalar) and scalar_of(root.args[1]) == -0.5):
            found.append((x, root.args[0]))
        elif is_call(root, aten.reciprocal.default) and is_call(root.args[0], aten.sqrt.default):
            found.append((x, root.args[0].args[0]))
    return found


def plus_eps(node: Any) -> tuple[Any, float] | None:
    """(v, eps) where the node is v + eps."""
    if is_call(node, aten.add.Tensor, aten.add.Scalar):
        for value, eps in commuted(node):
            number = scalar_of(eps)
            if number is not None:
                return value, number
    return None


def mean_over_last(node: Any) -> tuple[fx.Node, str | None] | None:
    """(y, problem) where the node is a mean of y, also spelled sum / size; the problem says why it is not over the last dimension."""
    if is_call(node, aten.mean.dim):
        return node.args[0], _over_last(node)
    if is_call(node, aten.div.Tensor, aten.mul.Tensor) and is_call(node.args[0], aten.sum.dim_IntList):
        total = node.args[0]
        size, number = dims(total.args[0])[-1], scalar_of(node.args[1])
        if number is not None and isinstance(size, int) and number == (size if is_call(node, aten.div.Tensor) else 1 / size):
            return total.args[0], _over_last(total)
    return None


def _over_last(node: fx.Node) -> str | None:
    axes = list(argument(node, 1, "dim") or ())
    last = len(dims(node.args[0])) - 1
    if axes not in ([-1], [last]):
        return f"the mean is over dimensions {axes}, not over the last one"
    return None if argument(node, 2, "keepdim", False) else "the mean drops its dimension, so it is not broadcast over it"


def square_of(node: Any) -> Any | None:
    """x where the node is x^2."""
    if is_call(node, aten.pow.Tensor_Scalar) and scalar_of(node.args[1]) == 2.0:
        return node.args[0]
    if is_call(node, aten.square.default):
        return node.args[0]
    if is_call(node, aten.mul.Tensor) and node.args[0] is node.args[1]:
        return node.args[0]
    return None


def _match(x: Any, under: Any) -> Found | Miss | None:
    split = plus_eps(under)
    value, eps = split if split is not None else (under, None)
    mean = mean_over_last(value)
    squared = square_of(mean[0]) if mean is not None else None
    if mean is None or squared is None or not is_tensor(x):
        return None
    if mean[1] is not None:
        return Miss(mean[1])
    if squared is not x:
        return Miss(f"the mean square is that of {squared}, but {x} is divided by it")
    if eps is None:
        return Miss("no constant eps is added to the mean square")
    if dtype_of(x) is not torch.float32:
        return Miss(f"{x} is {dtype_of(x)}; the fused op computes in float32")
    return Found(x, eps)
