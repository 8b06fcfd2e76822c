"""Attention written out as matrix products, found in the exported graph and made one `mixplan::attention` node.

A few models do not go through transformers' attention interface. Their weights are softmax(scale * q k^T + bias) with a bias that depends
on places only: a causal mask, a window, ALiBi. The bias is not matched by pattern: its subgraph is evaluated for a short prompt, and the
numbers are read. What they don't explain is left as it is, and is then refused by the check for mixing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from mixplan.compiler.export.biases import Bias, read_bias
from mixplan.compiler.export.editing import constant, drop_dead, evaluate, insert

__all__ = ["number_attention", "rewrite_eager_attention"]

aten = torch.ops.aten
_SOFTMAX = ("softmax", "_softmax", "_safe_softmax")
_SAME = frozenset(
    "to _to_copy type_as contiguous clone alias detach dropout float view reshape _unsafe_view unsqueeze squeeze expand lift_fresh".split()
)
_PRODUCTS = ("matmul", "bmm", "baddbmm")


def op_name(node: Any) -> str:
    """The op's name without namespace, overload and in-place mark; "" for anything but a call of an op."""
    if not isinstance(node, fx.Node) or not isinstance(node.target, torch._ops.OpOverload):
        return ""
    name: str = node.target._schema.name.split("::")[1]
    return name.removesuffix("_") if not name.endswith("__") else name.strip("_")


@dataclass
class _Scores:
    """softmax(scale * left right + bias): what has been peeled off so far, from the softmax inwards."""

    scale: float = 1.0
    bias: list[tuple[float, Tensor]] = field(default_factory=list)
    keep: list[Tensor] = field(default_factory=list)
    left: fx.Node | None = None
    right: fx.Node | None = None


def rewrite_eager_attention(module: fx.GraphModule, tokens: int) -> int:
    """Rewrite in place, reading biases for a prompt of `tokens` tokens; gives the number of attention nodes made."""
    count = 0
    for node in list(module.graph.nodes):
        if op_name(node) in _SOFTMAX and _last_axis(node):
            count += _rewrite_softmax(module, node, tokens)
        elif op_name(node) == "scaled_dot_product_attention":
            count += _rewrite_fused(module, node, tokens)
    if count:
        drop_dead(module)
    return count


def number_attention(module: fx.GraphModule) -> int:
    """Give the attention nodes their running number in graph order; returns how many there are."""
    layer = 0
    for node in module.graph.nodes:
        if node.target is torch.ops.mixplan.attention.default:
            node.args = (*node.args[:4], layer, *node.args[5:])
            layer += 1
    return layer


def _last_axis(node: fx.Node) -> bool:
    value = node.meta["val"]
    return value.ndim in (3, 4) and node.args[1] % value.ndim == value.ndim - 1 and isinstance(value.shape[-1], torch.SymInt)


def _rewrite_softmax(module: fx.GraphModule, softmax: fx.Node, tokens: int) -> bool:
    product = _weighted_values(softmax)
    if product is None:
        return False
    scores = _Scores()
    if not _peel(module, softmax.args[0], scores, tokens) or scores.left is None or scores.right is None:
        return False
    heads = softmax.meta["val"].shape[-3]
    bias = read_bias(scores.bias, scores.keep, heads, tokens)
    if bias is None:
        return False
    key = insert(softmax, aten.transpose.int, scores.right, -1, -2)
    _replace(product, scores.left, key, product.args[1], scores.scale, bias)
    return True


def _rewrite_fused(module: fx.GraphModule, node: fx.Node, tokens: int) -> bool:
    query, key, value = node.args[:3]
    mask = node.args[3] if len(node.args) > 3 else node.kwargs.get("attn_mask")
    causal = node.args[5] if len(node.args) > 5 else node.kwargs.get("is_causal", False)
    scores = _Scores()
    if mask is not None:
        number = evaluate(module, mask, tokens)
        if number is None:
            return False
        if number.dtype is torch.bool:
            scores.keep.append(number)
        else:
            scores.bias.append((1.0, number))
    elif causal:
        scores.keep.append(torch.ones(tokens, tokens, dtype=torch.bool).tril())
    bias = read_bias(scores.bias, scores.keep, query.meta["val"].shape[-3], tokens)
    if bias is None or query.meta["val"].ndim != 4:
        return False
    scale = node.kwargs.get("scale")
    _replace(node, query, key, value, query.meta["val"].shape[-1] ** -0.5 if scale is None else scale, bias)
    return True


def _replace(node: fx.Node, query: fx.Node, key: fx.Node, value: fx.Node, scale: float, bias: Bias) -> None:
    """Put attention in the place of `node`, whose value is [1, H, T, Dv] or [H, T, Dv]."""
    shape = node.meta["val"].shape
    parts = [insert(node, aten.unsqueeze.default, x, 0) if x.meta["val"].ndim == 3 else x for x in (query, key, value)]
    slopes = None
    if bias.slopes is not None:
        slopes = constant(node, "alibi_slopes", torch.tensor(bias.slopes, dtype=torch.float32))
    out = insert(node, torch.ops.mixplan.attention.default, *parts, float(scale), 0, bias.window, 0.0, None, slopes, bias.mask)
    out = insert(node, aten.transpose.int, out, 1, 2)
    if len(shape) == 3:
        out = insert(node, aten.squeeze.dim, out, 0)
    node.replace_all_uses_with(out)


def _weighted_values(softmax: fx.Node) -> fx.Node | None:
    """The product of the weights with the values: the one use of the softmax."""
    node = softmax
    while True:
        users = [user for user in node.users if "assert" not in str(user.target)]
        if len(users) != 1:
            return None
        user = users[0]
        if op_name(user) in ("matmul", "bmm") and user.args[0] is node:
            return user
        if op_name(user) not in _SAME:
            return None
        node = user


def _peel(module: fx.GraphModule, node: Any, scores: _Scores, tokens: int) -> bool:
    """Walk from the softmax's argument to the product of queries and keys."""
    while True:
        name = op_name(node)
        if name in _SAME:
            node = node.args[0]
        elif name in _PRODUCTS:
            return _product(module, node, name, scores, tokens)
        elif name in ("mul", "div") and not isinstance(node.args[1], fx.Node):
            scores.scale *= node.args[1] if name == "mul" else 1.0 / node.args[1]
            node = node.args[0]
        elif (step := _biased(module, node, name, scores, tokens)) is not None:
            node = step
        else:
            return False


def _biased(module: fx.GraphModule, node: fx.Node, name: str, scores: _Scores, tokens: int) -> fx.Node | None:
    """Peel one op that combines scores with numbers that depend on places only; gives the scores' side."""
    if name not in ("add", "sub", "mul", "div", "where", "masked_fill", "max", "maximum", "baddbmm"):
        return None
    for inner, others in _sides(node, name):
        numbers = [evaluate(module, other, tokens) for other in others]
        if any(number is None for number in numbers) or evaluate(module, inner, tokens) is not None:
            continue
        first = numbers[0]
        assert first is not None
        if name in ("add", "sub"):
            scores.bias.append((scores.scale if name == "add" else -scores.scale, first))
        elif name in ("mul", "div") and first.numel() == 1:
            scores.scale *= float(first) if name == "mul" else 1.0 / float(first)
        elif name == "mul" and bool(((first == 0) | (first == 1)).all()):
            scores.keep.append(first != 0)
        elif name == "where":
            scores.keep.append(first.bool())
        elif name == "masked_fill":
            scores.keep.append(~first.bool())
        elif name not in ("max", "maximum"):
            return None
        return inner
    return None


def _sides(node: fx.Node, name: str) -> Iterator[tuple[Any, list[Any]]]:
    if name == "where":
        yield node.args[1], [node.args[0]]
    elif name == "masked_fill":
        yield node.args[0], [node.args[1]]
    else:
        yield node.args[0], [node.args[1]]
        if name in ("add", "mul", "maximum", "max") and len(node.args) > 1:
            yield node.args[1], [node.args[0]]


def _product(module: fx.GraphModule, node: fx.Node, name: str, scores: _Scores, tokens: int) -> bool:
    scores.left, scores.right = (node.args[1], node.args[2]) if name == "baddbmm" else (node.args[0], node.args[1])
    if name == "baddbmm":
        added = evaluate(module, node.args[0], tokens)
        beta, alpha = float(node.kwargs.get("beta", 1)), float(node.kwargs.get("alpha", 1))
        if added is None and beta:
            return False
        if added is not None and beta:
            scores.bias.append((scores.scale * beta, added))
        scores.scale *= alpha
    return True
