"""Reshapes of the leading dimensions move behind linear layers and elementwise ops, where they meet others and cancel.

GPT-2 flattens [1, T, K] to [T, K] around each product, experts around their router; afterwards [1, T, K] runs through the model.
"""

from __future__ import annotations

from typing import Any

from torch import fx

from mixplan.passes.canonicalize.elementwise import is_elementwise
from mixplan.passes.canonicalize.reshapes import keeps_last, reshape_to
from mixplan.passes.fx_ops import LINEAR
from mixplan.passes.patterns import aten, dims, is_call, is_tensor, rank
from mixplan.passes.rewriting import Rewriter
from mixplan.passes.rules import SimpleRule

__all__ = ["SINK_RULES"]

_ELEMENTWISE = (
    aten.add.Tensor,
    aten.sub.Tensor,
    aten.mul.Tensor,
    aten.div.Tensor,
    aten.pow.Tensor_Scalar,
    aten.neg.default,
    aten.silu.default,
    aten.gelu.default,
    aten.relu.default,
    aten.tanh.default,
    aten.sigmoid.default,
    aten.erf.default,
    aten.square.default,
    aten.hardtanh.default,
)


def _linear(node: fx.Node, edit: Rewriter) -> fx.Node | None:
    """linear(reshape(x)) -> reshape(linear(x)), for reshapes of the leading dimensions."""
    x, weight, bias, residual = (*node.args, None, None)[:4]
    if residual is not None or not is_call(x, aten.reshape.default):
        return None
    source = x.args[0]
    if not keeps_last(x):
        # Heads [1, T, H, D] flattened to [T, H D] at once: give them their leading 1 back.
        if rank(x) != 2 or rank(source) < 3 or dims(source)[:2] != (1, dims(x)[0]):
            return None
        source = reshape_to(edit, source, (1, *dims(x)))
    return reshape_to(edit, edit.call(LINEAR, source, weight, bias), dims(node))


def _elementwise(node: fx.Node, edit: Rewriter) -> fx.Node | None:
    """op(reshape(a), reshape(b)) -> reshape(op(a, b)), where the operands are reshaped alike or are vectors over the last dimension."""
    if not is_elementwise(node):
        return None
    tensors = [arg for arg in node.args if isinstance(arg, fx.Node)]
    full = [x for x in tensors if rank(x) > 1]
    if not full or not all(is_tensor(x) for x in tensors) or not all(keeps_last(x) and dims(x) == dims(node) for x in full):
        return None
    if len({dims(x.args[0]) for x in full}) != 1:
        return None

    def inner(arg: Any) -> Any:
        return arg.args[0] if arg in full else arg

    return reshape_to(edit, edit.call(node.target, *[inner(arg) for arg in node.args], **node.kwargs), dims(node))


SINK_RULES = (
    SimpleRule("sink_reshape_below_linear", (LINEAR,), _linear),
    SimpleRule("sink_reshape", _ELEMENTWISE, _elementwise),
)
