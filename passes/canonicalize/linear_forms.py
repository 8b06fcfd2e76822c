"""Products with a weight become `mixplan::linear`, look-ups in a table `mixplan::embedding`; other products stay `aten.matmul`."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from mixplan.passes.canonicalize.permutes import permute_of
from mixplan.passes.fx_ops import EMBEDDING, LINEAR
from mixplan.passes.patterns import argument, aten, dims, dtype_of, is_constant, is_parameter, rank
from mixplan.passes.rewriting import Rewriter
from mixplan.passes.rules import SimpleRule, rule_pass

__all__ = ["LINEAR_FORMS", "LINEAR_RULES"]


def _is_weight(node: Any) -> bool:
    return is_constant(node) and rank(node) == 2 and dtype_of(node) is torch.float32


def _is_bias(node: Any, rows: Any) -> bool:
    return node is None or (is_constant(node) and dims(node) == (rows,))


def _make(edit: Rewriter, x: fx.Node, weight: fx.Node, bias: fx.Node | None) -> fx.Node:
    """linear, with a bias that is no constant vector added apart."""
    if _is_bias(bias, dims(weight)[0]):
        return edit.call(LINEAR, x, weight, bias)
    return edit.call(aten.add.Tensor, edit.call(LINEAR, x, weight, None), bias)


def _linear(node: fx.Node, edit: Rewriter) -> fx.Node | None:
    x, weight, bias = node.args[0], node.args[1], argument(node, 2, "bias")
    if _is_weight(weight):
        return _make(edit, x, weight, bias)
    product = edit.call(aten.matmul.default, x, permute_of(edit, weight, [1, 0]))
    return product if bias is None else edit.call(aten.add.Tensor, product, bias)


def _addmm(node: fx.Node, edit: Rewriter) -> fx.Node | None:
    bias, x, weight = node.args[:3]
    if node.kwargs.get("alpha", 1) != 1 or node.kwargs.get("beta", 1) != 1:
        return None
    if _is_weight(weight):
        return _make(edit, x, permute_of(edit, weight, [1, 0]), bias)
    return edit.call(aten.add.Tensor, edit.call(aten.matmul.default, x, weight), bias)


def _matmul(node: fx.Node, edit: Rewriter) -> fx.Node | None:
    x, weight = node.args[0], node.args[1]
    if _is_weight(weight) and not is_constant(x) and rank(x) >= 2:
        return edit.call(LINEAR, x, permute_of(edit, weight, [1, 0]), None)
    return None if node.target is aten.matmul.default else edit.call(aten.matmul.default, x, weight)


def _embedding(node: fx.Node, edit: Rewriter) -> fx.Node | None:
    weight, ids = node.args[0], node.args[1]
    if _is_weight(weight):
        return edit.call(EMBEDDING, ids, weight)
    flat = edit.call(aten.index.Tensor, weight, [ids])
    return flat


def _index_rows(node: fx.Node, edit: Rewriter) -> fx.Node | None:
    """Indexing the rows of a parameter is an embedding."""
    weight, indices = node.args[0], node.args[1]
    if not (is_parameter(weight) and _is_weight(weight)) or len(indices) != 1 or dtype_of(indices[0]) is not torch.int64:
        return None
    return edit.call(EMBEDDING, indices[0], weight)


LINEAR_RULES = (
    SimpleRule("linear", (aten.linear.default,), _linear),
    SimpleRule("addmm_to_linear", (aten.addmm.default,), _addmm),
    SimpleRule("matmul_to_linear", (aten.mm.default, aten.matmul.default), _matmul),
    SimpleRule("embedding", (aten.embedding.default,), _embedding),
    SimpleRule("index_to_embedding", (aten.index.Tensor,), _index_rows),
)
LINEAR_FORMS = rule_pass("linear_forms", "canonicalize", "linear, addmm, mm with a weight to mixplan::linear; embedding", LINEAR_RULES)
