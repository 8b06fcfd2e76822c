"""The check that attention is the only op that mixes tokens.

A captured graph is run as a ragged batch, so the value of a token may depend on other tokens only through `mixplan::attention`. Every node
that takes a tensor with a token dimension is checked by the rule of its op; an op without a rule is refused. The same rules find uses of a
token's place in the step (arange over T, T as a number), which differs from its position.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from mixplan.compiler.export.model_code import source_line
from mixplan.passes.fx_ops import attention, grouped_linear  # noqa: F401  the ops this file speaks of
from mixplan.runtime.errors import UnsupportedError

__all__ = ["check_mixing"]

# Ops that keep every token's values with the token, whatever their other arguments are.
_LOCAL = frozenset(
    "view reshape _unsafe_view unsqueeze squeeze flatten unflatten transpose permute t expand expand_as view_as reshape_as type_as to "
    "_to_copy contiguous clone alias detach dropout movedim swapaxes swapdims mT lift_fresh_copy one_hot zeros_like ones_like full_like "
    "empty_like linear repeat embedding bucketize scalar_tensor copy copy_ fill_ zero_".split()
)
# Ops that make tensors without reading one; their sizes may hold T.
_MAKERS = frozenset("zeros ones full empty new_zeros new_ones new_full new_empty scalar_tensor arange lift_fresh".split())
# Ops over one or several axes, which must not be token axes: name -> position of the axis argument.
_OVER_AXES = {
    **dict.fromkeys("mean sum prod amax amin any all softmax _softmax log_softmax _log_softmax logsumexp cumsum cumprod".split(), 1),
    **dict.fromkeys("max min argmax".split(), 1),
    **dict.fromkeys("argmin sort argsort flip unbind std var norm glu linalg_vector_norm median cummax".split(), 1),
    "topk": 2, "kthvalue": 2, "roll": 2, "linalg_vector_norm": 2, "norm": 2, "repeat_interleave": 2,
    "chunk": 2, "split": 2, "split_with_sizes": 2,
}  # fmt: skip
_LAST = {
    "sort": -1,
    "topk": -1,
    "argsort": -1,
    "softmax": 1,
    "glu": -1,
    "chunk": 0,
    "split": 0,
    "split_with_sizes": 0,
    "unbind": 0,
    "roll": None,
}
_PRODUCTS = frozenset("matmul bmm mm addmm baddbmm einsum mv dot".split())


def check_mixing(module: fx.GraphModule, tokens: torch.SymInt) -> None:
    """UnsupportedError naming the first node that mixes tokens outside attention, with its source line in the model."""
    checker = _Checker(tokens)
    for node in module.graph.nodes:
        if node.op == "call_function" and (reason := checker.reason(node)):
            where = source_line(node)
            raise UnsupportedError(
                f"node {node.name!r} ({node.target}) {reason}, outside of attention{f'; it comes from {where}' if where else ''}",
                hint="Only causal attention may mix tokens; convolutions, recurrences and sums along the sequence are not supported.",
            )


class _Checker:
    def __init__(self, tokens: torch.SymInt) -> None:
        self.symbol = tokens.node.expr
        # Nodes whose values are places in the step: arange over T and what is computed from it alone.
        self.places: set[fx.Node] = set()

    def has_tokens(self, size: Any) -> bool:
        """Whether a dimension's size depends on T."""
        return isinstance(size, torch.SymInt) and self.symbol in size.node.expr.free_symbols

    def axes(self, value: Any) -> list[int]:
        """The axes of a tensor whose size depends on T."""
        return [axis for axis, size in enumerate(value.shape) if self.has_tokens(size)] if isinstance(value, Tensor) else []

    def reason(self, node: fx.Node) -> str:
        """Why the node is refused, or ""."""
        target = node.target
        if target is operator.getitem or not isinstance(target, torch._ops.OpOverload):
            return ""
        name = target._schema.name.split("::")[1]
        if target.namespace == "mixplan":
            return ""
        values = [n.meta.get("val") for n in node.all_input_nodes]
        if name == "sym_size" or not any(isinstance(v, Tensor) for v in [*values, node.meta.get("val")]):
            return ""
        if place := self._place(node, name):
            return place
        if not any(self.axes(value) for value in values) or name in _MAKERS:
            return ""
        if name in _LOCAL:
            return ""
        functional = name.removesuffix("_") if name.endswith("_") and not name.startswith("_") else name
        if number := self._counts(node, functional):
            return number
        rule = _RULES.get(functional)
        if rule is not None:
            return rule(self, node)
        if functional in _OVER_AXES and not self._elementwise(node, functional):
            return self._over_axes(node, functional)
        if torch.Tag.pointwise in target.tags:
            return ""
        return "is an op of which mixplan does not know whether it mixes tokens"

    def _elementwise(self, node: fx.Node, name: str) -> bool:
        """max and min of two tensors are not reductions."""
        return name in ("max", "min") and len(node.args) > 1 and isinstance(node.args[1], fx.Node)

    def _place(self, node: fx.Node, name: str) -> str:
        if name == "arange" and self.axes(node.meta.get("val")):
            self.places.add(node)
            return ""
        used = [n for n in node.all_input_nodes if n in self.places]
        if not used:
            return ""
        if name == "index" and node.args[0] not in self.places:
            source = node.args[0].meta["val"]
            if all(self.has_tokens(source.shape[axis]) for axis, index in enumerate(node.args[1]) if index in self.places):
                return ""
        elif all(n in self.places for n in node.all_input_nodes if isinstance(n.meta.get("val"), Tensor)):
            self.places.add(node)
            return ""
        return "uses the place of a token in the step, which is not its position"

    def _counts(self, node: fx.Node, name: str) -> str:
        """The number of tokens as an operand."""
        if torch.Tag.pointwise in node.target.tags:
            for argument in node.args:
                if isinstance(argument, fx.Node) and self.has_tokens(argument.meta.get("val")):
                    return "computes with the number of tokens in the step"
        return ""

    def _over_axes(self, node: fx.Node, name: str) -> str:
        value = node.args[0].meta["val"]
        if not isinstance(value, Tensor):
            return ""
        at = _OVER_AXES[name]
        given = node.args[at] if len(node.args) > at else node.kwargs.get("dim", _LAST.get(name))
        axes = range(value.ndim) if given is None or given == [] else [given] if isinstance(given, int) else given
        tokens = self.axes(value)
        return f"works along the token dimension of {_shape(value)}" if any(axis % max(value.ndim, 1) in tokens for axis in axes) else ""


def _product(checker: _Checker, node: fx.Node) -> str:
    name = node.target._schema.name.split("::")[1]
    if name == "einsum":
        operands = [n.meta["val"] for n in node.args[1]]
        inputs, _, output = str(node.args[0]).replace(" ", "").partition("->")
        for letters, value in zip(inputs.split(","), operands, strict=True):
            if "." not in letters and any(checker.has_tokens(s) and c not in output for c, s in zip(letters, value.shape, strict=True)):
                return "sums over the token dimension"
        return ""
    left, right = node.args[1:3] if name in ("addmm", "baddbmm") else node.args[:2]
    shapes = [n.meta["val"].shape for n in (left, right)]
    if checker.has_tokens(shapes[0][-1]) or checker.has_tokens(shapes[1][-2 if len(shapes[1]) > 1 else -1]):
        return "sums over the token dimension"
    if checker.has_tokens(shapes[0][-2] if len(shapes[0]) > 1 else 1) and checker.has_tokens(shapes[1][-1]):
        return "pairs every token with every token (attention that bypasses transformers' attention interface)"
    return ""


def _norm(checker: _Checker, node: fx.Node) -> str:
    value, sizes = node.args[0].meta["val"], node.args[1]
    over = value.shape[value.ndim - len(sizes) :]
    return "normalizes over the token dimension" if any(checker.has_tokens(size) for size in over) else ""


def _slice(checker: _Checker, node: fx.Node) -> str:
    value = node.args[0].meta["val"]
    axis = (node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)) % value.ndim
    if axis not in checker.axes(value) or str(node.meta["val"].shape[axis]) == str(value.shape[axis]):
        return ""
    return f"picks tokens by their place in the step from {_shape(value)}"


def _select(checker: _Checker, node: fx.Node) -> str:
    value = node.args[0].meta["val"]
    axis = node.args[1] % value.ndim
    return f"picks one token by its place in the step from {_shape(value)}" if axis in checker.axes(value) else ""


def _index(checker: _Checker, node: fx.Node) -> str:
    """x[..., rows, ...]: on the token axis only the wanted rows, masks over tokens excluded."""
    value = node.args[0].meta["val"]
    for axis, index in enumerate(node.args[1]):
        if index is None:
            continue
        if index.meta["val"].dtype is torch.bool:
            return "picks tokens by a mask"
        if axis in checker.axes(value) and not (_is_rows(index) or index in checker.places):
            return "picks tokens by computed indices"
    return ""


def _is_rows(node: fx.Node) -> bool:
    while node.op == "call_function" and node.args and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node.op == "placeholder" and node.name == "logit_rows"


def _along(position: int) -> Callable[[_Checker, fx.Node], str]:
    """The op reads or writes at indices along the axis in argument `position`."""

    def rule(checker: _Checker, node: fx.Node) -> str:
        value = node.args[0].meta["val"]
        axis = node.args[position] if len(node.args) > position else node.kwargs.get("dim", 0)
        if axis % max(value.ndim, 1) not in checker.axes(value):
            return ""
        if any(_is_rows(n) for n in node.all_input_nodes[1:]):
            return ""
        return f"moves values along the token dimension of {_shape(value)}"

    return rule


def _cat(checker: _Checker, node: fx.Node) -> str:
    values = [n.meta["val"] for n in node.args[0]]
    name = node.target._schema.name.split("::")[1]
    if name == "stack":
        return ""
    axis = (node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)) % max(v.ndim for v in values)
    return "joins values along the token dimension" if any(axis in checker.axes(v) for v in values) else ""


def _pad(checker: _Checker, node: fx.Node) -> str:
    value, pads = node.args[0].meta["val"], node.args[1]
    padded = [value.ndim - 1 - i // 2 for i, pad in enumerate(pads) if pad != 0]
    return "pads or shifts the token dimension" if any(axis in checker.axes(value) for axis in padded) else ""


def _always(reason: str) -> Callable[[_Checker, fx.Node], str]:
    return lambda checker, node: reason


_RULES: dict[str, Callable[[_Checker, fx.Node], str]] = {
    **dict.fromkeys(_PRODUCTS, _product),
    **dict.fromkeys(("layer_norm", "native_layer_norm", "rms_norm", "_fused_rms_norm"), _norm),
    "slice": _slice,
    "select": _select,
    "narrow": _slice,
    "index": _index,
    **dict.fromkeys(("gather", "scatter", "scatter_add", "index_select", "index_add", "index_copy", "diff", "slice_scatter"), _along(1)),
    "scatter_reduce": _along(1),
    "diff": _along(2),
    **dict.fromkeys(("cat", "concat", "stack"), _cat),
    **dict.fromkeys(("pad", "constant_pad_nd"), _pad),
    "index_put": _always("writes to tokens at computed indices"),
    "masked_scatter": _always("moves values between tokens"),
    "nonzero": _always("makes a shape that depends on values"),
    "masked_select": _always("makes a shape that depends on values"),
    "item": _always("takes one number out of a tensor"),
    "scaled_dot_product_attention": _always("is attention that bypasses transformers' attention interface"),
    **dict.fromkeys(("conv1d", "conv2d", "convolution"), _always("convolves over the token dimension")),
    "group_norm": _always("normalizes over groups of the token dimension"),
    "batch_norm": _always("normalizes over the token dimension"),
}  # fmt: skip


def _shape(value: Tensor) -> str:
    return f"[{', '.join(str(size) for size in value.shape)}]"
