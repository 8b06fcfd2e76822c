"""A norm that only feeds one quantization writes its output quantized."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import fx

from mixplan.passes.fx_ops import LAYER_NORM, LAYER_NORM_QUANT, QUANTIZE_ACT, RMS_NORM, RMS_NORM_QUANT
from mixplan.passes.patterns import Miss, is_call
from mixplan.passes.rewriting import Rewriter
from mixplan.passes.rules import Rule

__all__ = ["QuantizeNorm"]

_FUSED = {RMS_NORM: RMS_NORM_QUANT, LAYER_NORM: LAYER_NORM_QUANT}


@dataclass(frozen=True)
class Found:
    """The norm and the group of the quantization."""

    norm: fx.Node
    group: int


class QuantizeNorm(Rule[Found]):
    """quantize_act(rms_norm(x)) -> rms_norm_quant(x), and the same for layer_norm."""

    name: ClassVar[str] = "quantize_norm"
    targets: ClassVar[tuple[Any, ...]] = (QUANTIZE_ACT,)

    def pattern(self, node: fx.Node) -> Found | Miss | None:
        norm, group = node.args
        return Found(norm, group) if is_call(norm, RMS_NORM, LAYER_NORM) else None

    def check(self, match: Found) -> Miss | None:
        if len(match.norm.users) == 1:
            return None
        groups = sorted({user.args[1] for user in match.norm.users if is_call(user, QUANTIZE_ACT)})
        if len(groups) > 1:
            return Miss(f"{match.norm} is quantized with several group sizes, {groups}")
        others = ", ".join(user.name for user in match.norm.users if not is_call(user, QUANTIZE_ACT))
        return Miss(f"{match.norm} is also used unquantized, by {others}")

    def rewrite(self, node: fx.Node, match: Found, edit: Rewriter) -> None:
        new = edit.call(_FUSED[match.norm.target], *match.norm.args, match.group)
        edit.replace(node, new, same_value=False)
