"""Bytes and operations of a plan's nodes in a step of a given shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from math import prod
from typing import TypeAlias

from mixplan.runtime.cost.work import Work
from mixplan.runtime.plan import Node, Plan, Value, dim_value

__all__ = ["Cost", "node_cost", "plan_cost"]


@dataclass(frozen=True)
class Cost:
    """What must be moved at least once, in bytes, and computed; a multiplication and an addition are one operation each.

    weight_bytes: constants, packed as stored, each read once (padding counted in; of an embedding the rows asked for, of experts at most
    one for each row routed). kv_bytes: keys and values of the positions attended to, read once for all the heads that share them, and the
    new ones written. activation_bytes: what nodes hand to one another; it stays in caches where it can. The ops are split by what the
    operands of the products are; everything that is not a product counts as f32.
    """

    weight_bytes: int = 0
    kv_bytes: int = 0
    activation_bytes: int = 0
    int8_ops: int = 0
    bf16_ops: int = 0
    f32_ops: int = 0

    @property
    def memory_bytes(self) -> int:
        """What comes from memory whatever the caches: weights, keys and values."""
        return self.weight_bytes + self.kv_bytes

    @property
    def bytes(self) -> int:
        """All bytes."""
        return self.memory_bytes + self.activation_bytes

    @property
    def ops(self) -> int:
        """All operations."""
        return self.int8_ops + self.bf16_ops + self.f32_ops

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(Cost)))


@dataclass(frozen=True)
class _View:
    """A node with its values at one step."""

    plan: Plan
    node: Node
    work: Work

    def value(self, index: int) -> Value | None:
        return self.plan.values[index] if index >= 0 else None

    def elements(self, value: Value) -> int:
        return prod(dim_value(dim, tokens=self.work.tokens, rows=self.work.rows) for dim in value.shape)

    def size(self, value: Value) -> int:
        """Bytes; a constant that is all one number takes none."""
        return 0 if value.fill is not None else self.elements(value) * value.dtype.itemsize

    @property
    def inputs(self) -> list[Value]:
        return [self.plan.values[index] for index in self.node.inputs if index >= 0]

    @property
    def output(self) -> Value:
        return self.plan.values[self.node.outputs[0]]

    def attr(self, name: str, default: int = 0) -> int:
        value = self.node.attrs.get(name, default)
        return int(value) if isinstance(value, int | float) else default

    def text(self, name: str, default: str) -> str:
        value = self.node.attrs.get(name, default)
        return value if isinstance(value, str) else default

    @property
    def constants(self) -> int:
        return sum(self.size(value) for value in self.inputs if value.kind == "const")

    @property
    def activations(self) -> int:
        read = sum(self.size(value) for value in self.inputs if value.kind != "const")
        return read + sum(self.size(self.plan.values[index]) for index in self.node.outputs)


def _products(view: _View, outputs: int) -> Cost:
    """`outputs` sums of `columns` products each, on weights that are all read."""
    ops = 2 * outputs * view.attr("columns")
    kind = "int8_ops" if view.node.op.endswith("_q") else "bf16_ops" if view.text("activation_dtype", "f32") == "bf16" else "f32_ops"
    return Cost(weight_bytes=view.constants, activation_bytes=view.activations, **{kind: ops})


def _linear(view: _View) -> Cost:
    return _products(view, view.elements(view.output))


def _gated(view: _View) -> Cost:
    return _products(view, 2 * view.elements(view.output))


def _grouped(view: _View) -> Cost:
    outputs = view.elements(view.output)
    cost = _products(view, outputs)
    # A row goes to one expert: no more experts are read than there are rows.
    experts, routed = max(view.attr("experts"), 1), outputs // max(view.attr("rows"), 1)
    return Cost(cost.weight_bytes * min(experts, routed) // experts, 0, cost.activation_bytes, cost.int8_ops, cost.bf16_ops, cost.f32_ops)


def _embedding(view: _View) -> Cost:
    """Only the rows asked for; one operation for each element unpacked."""
    rows, count = max(view.attr("rows"), 1), view.elements(view.output)
    looked_up = count // max(view.attr("columns"), 1)
    return Cost(view.constants * min(looked_up, rows) // rows, 0, view.activations, f32_ops=count)


def _attention(view: _View) -> Cost:
    queries, _, values = view.inputs[:3]
    (heads, k_dim), (_, v_dim) = (tuple(map(_fixed, x.shape[2:4])) for x in (queries, values))
    layer = view.plan.attention[view.attr("layer")]
    window, mask = view.attr("window"), view.text("mask", "causal")
    moved = (view.work.positions_read(window, mask) + view.work.tokens) * layer.token_bytes
    pairs = view.work.attended(window, mask)
    # Scores, then the weighted sum of values; about five operations a score for the softmax.
    return Cost(view.constants, moved, view.activations, f32_ops=pairs * heads * (2 * (k_dim + v_dim) + 5))


def _fixed(dim: object) -> int:
    return dim if isinstance(dim, int) else 1


def _matmul(view: _View) -> Cost:
    inner = view.inputs[0].shape[-1:]
    depth = dim_value(inner[0], tokens=view.work.tokens, rows=view.work.rows) if inner else 1
    return Cost(view.constants, 0, view.activations, f32_ops=2 * view.elements(view.output) * depth)


def _take(view: _View) -> Cost:
    """Reads what it writes, not all that it could read."""
    return Cost(0, 0, 2 * view.size(view.output))


def _free(view: _View) -> Cost:
    return Cost()


# Operations for each element of the first input; 1 where a name is missing.
_PER_ELEMENT: Mapping[str, int] = {
    "rms_norm": 4,
    "layer_norm": 7,
    "rms_norm_quant": 8,
    "layer_norm_quant": 11,
    "quantize_act": 4,
    "rope": 3,
    "softmax": 5,
    "log_softmax": 5,
    "logsumexp": 4,
    "silu": 4,
    "gelu": 8,
    "gelu_tanh": 8,
    "sigmoid": 4,
    "cast": 0,
    "cat": 0,
    "pad": 0,
    "flip": 0,
}


def _elementwise(view: _View) -> Cost:
    """A few operations for each element that is read, or written where that is more."""
    sizes = [view.elements(value) for value in view.inputs[:1]] + [view.elements(view.output)]
    return Cost(view.constants, 0, view.activations, f32_ops=_PER_ELEMENT.get(view.node.op, 1) * max(sizes))


_Rule: TypeAlias = Callable[[_View], Cost]
_RULES: Mapping[str, _Rule] = {
    "linear": _linear,
    "linear_q": _linear,
    "gated_linear": _gated,
    "gated_linear_q": _gated,
    "grouped_linear": _grouped,
    "embedding": _embedding,
    "attention": _attention,
    "matmul": _matmul,
    "take": _take,
    "gather": _take,
    "index_nd": _take,
    # Other names for the same memory.
    "reshape": _free,
    "permute": _free,
    "expand": _free,
    "slice": _free,
}


def node_cost(plan: Plan, node: Node, work: Work) -> Cost:
    """What `node` moves and computes in a step of shape `work`."""
    view = _View(plan, node, work)
    if view.elements(view.output) == 0:
        return Cost()
    return _RULES.get(node.op, _elementwise)(view)


def plan_cost(plan: Plan, work: Work) -> Cost:
    """The whole step: the sum over its nodes."""
    return sum((node_cost(plan, node, work) for node in plan.nodes), Cost())
