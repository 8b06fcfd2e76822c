"""Small computations on the module's own tensors (rotary frequencies, masks, scales) are done once, here."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from mixplan.passes.base import FunctionPass, PassContext, PassResult
from mixplan.passes.canonicalize.elementwise import op_name
from mixplan.passes.patterns import aten, dtype_of, is_tensor
from mixplan.passes.rewriting import Rewriter, tensor_of
from mixplan.passes.rules import SimpleRule, apply_rules

__all__ = ["FOLD_CONSTANTS", "MAX_ELEMENTS"]

MAX_ELEMENTS = 1 << 16
"""Tensors of this many elements or more are never made: they would stand in the plan."""

_ARITHMETIC = (aten.mul.Tensor, aten.add.Tensor, aten.sub.Tensor, aten.div.Tensor, aten.pow.Tensor_Tensor)
_WITH_SCALAR = {aten.pow.Tensor_Tensor: aten.pow.Tensor_Scalar}


def _run(graph: fx.GraphModule, context: PassContext) -> PassResult:
    values: dict[fx.Node, Any] = {}
    edit = Rewriter(graph, "fold_constants")
    count = 0
    for node in list(graph.graph.nodes):
        if node.op == "get_attr":
            tensor = tensor_of(graph, node.target)
            if tensor.device.type == "cpu" and not _is_fake(tensor) and tensor.numel() < MAX_ELEMENTS:
                values[node] = tensor
        elif node.op == "call_function" and _foldable(node) and all(source in values for source in node.all_input_nodes):
            args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
            with torch.no_grad():
                values[node] = node.target(*args, **kwargs)
    for node in values:
        kept = node.op == "call_function" and isinstance(values[node], torch.Tensor)
        if kept and any(user not in values for user in node.users):
            edit.anchor = node
            tensor = values[node].clone()
            edit.replace(node, edit.constant(tensor, "folded"))
            count += 1
    count += apply_rules(graph, context, (SimpleRule("scalar_operand", _ARITHMETIC, _scalar_operand),))
    return PassResult(graph, count > 0, count)


def _is_fake(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, torch._subclasses.FakeTensor)


def _foldable(node: fx.Node) -> bool:
    """Pure ATen calls whose result is small, or a tuple of small tensors."""
    if node.target is operator.getitem:
        return True
    if not op_name(node.target) or node.target._schema.is_mutable or torch.Tag.nondeterministic_seeded in node.target.tags:
        return False
    value = node.meta.get("val")
    tensors = value if isinstance(value, (list, tuple)) else [value]
    return all(_is_small(one) for one in tensors)


def _is_small(value: Any) -> bool:
    static = isinstance(value, torch.Tensor) and all(isinstance(size, int) for size in value.shape)
    return static and value.numel() < MAX_ELEMENTS


def _scalar_operand(node: fx.Node, edit: Rewriter) -> fx.Node | None:
    """A float constant without dimensions, as an operand of arithmetic, is a plain number."""
    x, other = node.args[0], node.args[1]
    commutes = op_name(node.target) in ("mul", "add")
    if commutes and _number(edit, x) is not None and is_tensor(other):
        x, other = other, x
    number = _number(edit, other)
    if number is None or not is_tensor(x) or dtype_of(x) is not torch.float32 or dtype_of(node) is not torch.float32:
        return None
    return edit.call(_WITH_SCALAR.get(node.target, node.target), x, number, **node.kwargs)


def _number(edit: Rewriter, node: Any) -> float | None:
    if not (isinstance(node, fx.Node) and node.op == "get_attr" and is_tensor(node)):
        return None
    tensor = tensor_of(edit.module, node.target)
    if tensor.dim() or tensor.device.type != "cpu" or not tensor.is_floating_point() or _is_fake(tensor):
        return None
    return float(tensor.item())


FOLD_CONSTANTS = FunctionPass("fold_constants", "canonicalize", "small computations on the module's own tensors", _run)
