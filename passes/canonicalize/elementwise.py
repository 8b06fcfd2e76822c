"""Which ATen ops work element by element, so that layout changes may move through them."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from mixplan.passes.patterns import is_tensor

__all__ = ["is_elementwise", "op_name"]

_NAMES = frozenset(
    """
    neg abs exp exp2 expm1 log log2 log1p sqrt rsqrt reciprocal tanh sigmoid silu gelu relu relu6 erf sin cos floor ceil round sign
    softplus log_sigmoid square pow clamp clamp_min clamp_max hardtanh hardswish hardsigmoid leaky_relu elu mish logical_not bitwise_not
    add sub rsub mul div true_divide maximum minimum floor_divide remainder fmod eq ne lt le gt ge logical_and logical_or logical_xor
    bitwise_and bitwise_or bitwise_xor where masked_fill to _to_copy
    """.split()
)


def op_name(target: Any) -> str:
    """The op's name without namespace and overload, "" for what is not an ATen op."""
    if isinstance(target, torch._ops.OpOverload) and target.namespace == "aten":
        return str(target._schema.name).removeprefix("aten::")
    return ""


def is_elementwise(node: Any) -> bool:
    """Whether the node gives one tensor, each element of it made of its inputs' elements at the same (broadcast) place."""
    return isinstance(node, fx.Node) and node.op == "call_function" and op_name(node.target) in _NAMES and is_tensor(node)
