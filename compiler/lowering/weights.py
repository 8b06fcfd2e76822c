"""Ops that take a packed weight: linear layers in all their fused forms, embeddings, experts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from mixplan.compiler.constants import Call, Expr
from mixplan.compiler.lowering.context import CannotLower, Context, expr_name
from mixplan.compiler.lowering.operands import Operand, PackedWeight, Ref
from mixplan.passes.decision import decision_of, takes_over
from mixplan.passes.precision.schemes import Scheme
from mixplan.runtime.dtypes import DType
from mixplan.runtime.formats import F32, ceil_div
from mixplan.runtime.plan import Attr

__all__ = ["TABLE", "quantized_act", "transposed"]

Lowering = Callable[..., Operand]
_FP32 = Scheme("FP32", F32, "f32")


def scheme_of(c: Context) -> Scheme:
    """The node's scheme; FP32 where precision was not assigned."""
    decision = decision_of(c.fx)
    return decision.scheme if decision else _FP32


def transposed(weight: Expr) -> Expr:
    """A constant matrix with its axes exchanged."""
    rows, columns = weight.shape
    return Call(torch.ops.aten.transpose.int, (weight, 0, 1), {}, (columns, rows), weight.dtype)


def _pack(
    c: Context, layout: str, pieces: Sequence[Expr], rows: int, columns: int, experts: int = 1
) -> tuple[list[Ref | None], dict[str, Attr]]:
    """The weight's refs (weight, scales, zeros) and the attributes that describe them."""
    fmt = scheme_of(c).weight
    weight = PackedWeight(layout, tuple(pieces), fmt, rows, columns, experts, takes_over(decision_of(c.fx)))
    roles = c.build.packed(weight, expr_name(pieces[0], c.build.name))
    attrs: dict[str, Attr] = {"format": fmt.name, "rows": rows, "columns": columns, "group_size": fmt.group_size}
    return [roles["weight"], roles.get("scales"), roles.get("zeros")], attrs


def _activation_dtype(c: Context) -> str:
    """What a product whose input is not int8 rounds it to."""
    return scheme_of(c).activation


def quantized_act(c: Context, x: Ref, group: int) -> tuple[Ref, ...]:
    """x through quantize_act: q, scales, sums."""
    columns = x.shape[-1]
    assert isinstance(columns, int)
    step = group or 32
    width = ceil_div(columns, step) * step
    lead = x.shape[:-1]
    groups = (*lead, width // group if group else 1)
    return c.build.node("quantize_act", [x], [(DType.i8, (*lead, width)), (DType.f32, groups), (DType.f32, groups)], group=group)


def linear(c: Context, x: Operand, weight: Operand, bias: Operand = None, residual: Operand = None) -> Operand:
    """x W^T + bias + residual."""
    ref = c.ref(x, DType.f32)
    if not isinstance(weight, Expr) or len(weight.shape) != 2:
        return _dynamic_linear(c, ref, c.ref(weight, DType.f32), bias, residual)
    if scheme_of(c).activation == "i8":
        group = scheme_of(c).group
        q, scales, sums = quantized_act(c, ref, group)
        return linear_q(c, q, scales, sums, weight, bias, residual, group)
    rows, columns = weight.shape
    refs, attrs = _pack(c, "linear", [weight], rows, columns)
    inputs = [ref, *refs, c.optional(bias), c.optional(residual)]
    shape = (*ref.shape[:-1], rows)
    return c.node("linear", inputs, DType.f32, shape, **attrs, activation_dtype=_activation_dtype(c))


def _dynamic_linear(c: Context, x: Ref, weight: Ref, bias: Operand, residual: Operand) -> Operand:
    """A linear layer whose weight is computed in the step."""
    axes = [*range(weight.rank - 2), weight.rank - 1, weight.rank - 2]
    out = c.node("matmul", [x, c.permute(weight, axes)], DType.f32, (*x.shape[:-1], weight.shape[-2]))
    for extra in (bias, residual):
        if extra is not None:
            out = c.binary("add", out, c.ref(extra, DType.f32))
    return out


def linear_q(
    c: Context, q: Operand, scales: Operand, sums: Operand, weight: Operand, bias: Operand, residual: Operand, group: int
) -> Operand:
    """A linear layer on quantized activations."""
    if not isinstance(weight, Expr):
        raise CannotLower("a weight that is computed in the step, with quantized activations")
    rows, columns = weight.shape
    refs, attrs = _pack(c, "linear", [weight], rows, columns)
    inputs = [c.ref(q), c.ref(scales), c.ref(sums), *refs, c.optional(bias), c.optional(residual)]
    return c.node("linear_q", inputs, DType.f32, (*c.ref(q).shape[:-1], rows), **attrs)


def _gated_bias(c: Context, b_gate: Operand, b_up: Operand, rows: int) -> Ref | None:
    if b_gate is None and b_up is None:
        return None
    zeros = Call(torch.zeros, (rows,), {}, (rows,), torch.float32)
    both = [zeros if b is None else b for b in (b_gate, b_up)]
    if not all(isinstance(b, Expr) for b in both):
        raise CannotLower("a gated layer whose bias is computed in the step")
    return c.ref(Call(torch.stack, (both,), {}, (2, rows), torch.float32))


def _gated_weights(c: Context, w_gate: Operand, w_up: Operand) -> tuple[int, list[Ref | None], dict[str, Attr]]:
    if not isinstance(w_gate, Expr) or not isinstance(w_up, Expr):
        raise CannotLower("a gated layer whose weight is computed in the step")
    rows, columns = w_gate.shape
    refs, attrs = _pack(c, "gated", [w_gate, w_up], rows, columns)
    return rows, refs, attrs


def gated_linear(c: Context, x: Operand, w_gate: Operand, w_up: Operand, b_gate: Operand, b_up: Operand, activation: str) -> Operand:
    """act(x Wg^T + bg) * (x Wu^T + bu)."""
    ref = c.ref(x, DType.f32)
    if scheme_of(c).activation == "i8":
        group = scheme_of(c).group
        q, scales, sums = quantized_act(c, ref, group)
        return gated_linear_q(c, q, scales, sums, w_gate, w_up, b_gate, b_up, activation, group)
    rows, refs, attrs = _gated_weights(c, w_gate, w_up)
    inputs = [ref, *refs, _gated_bias(c, b_gate, b_up, rows)]
    shape = (*ref.shape[:-1], rows)
    return c.node("gated_linear", inputs, DType.f32, shape, **attrs, activation=activation, activation_dtype=_activation_dtype(c))


def gated_linear_q(
    c: Context,
    q: Operand,
    scales: Operand,
    sums: Operand,
    w_gate: Operand,
    w_up: Operand,
    b_gate: Operand,
    b_up: Operand,
    activation: str,
    group: int,
) -> Operand:
    """gated_linear on quantized activations."""
    rows, refs, attrs = _gated_weights(c, w_gate, w_up)
    inputs = [c.ref(q), c.ref(scales), c.ref(sums), *refs, _gated_bias(c, b_gate, b_up, rows)]
    return c.node("gated_linear_q", inputs, DType.f32, (*c.ref(q).shape[:-1], rows), **attrs, activation=activation)


def embedding(c: Context, ids: Operand, weight: Operand) -> Operand:
    """Rows of a packed table."""
    at = c.ref(ids, DType.i64)
    if not isinstance(weight, Expr):
        table = c.ref(weight)
        return c.node("take", [table, at], table.dtype, (*at.shape, *table.shape[1:]), axis=0)
    rows, columns = weight.shape
    refs, attrs = _pack(c, "linear", [weight], rows, columns)
    return c.node("embedding", [at, *refs], DType.f32, (*at.shape, columns), **attrs)


def aten_embedding(c: Context, weight: Operand, ids: Operand, *_: Any, **__: Any) -> Operand:
    """torch's argument order; padding_idx matters in training only."""
    return embedding(c, ids, weight)


def grouped_linear(c: Context, x: Operand, expert_ids: Operand, weight: Operand, bias: Operand = None) -> Operand:
    """Each token through the experts that it was routed to."""
    ref, ids = c.ref(x, DType.f32), c.ref(expert_ids, DType.i64)
    if not isinstance(weight, Expr):
        raise CannotLower("experts' weights that are computed in the step")
    experts, rows, columns = weight.shape
    refs, attrs = _pack(c, "grouped", [weight], rows, columns, experts)
    return c.node("grouped_linear", [ref, ids, *refs, c.optional(bias)], DType.f32, (*ids.shape, rows), **attrs, experts=experts)


def matmul(c: Context, a: Operand, b: Operand) -> Operand:
    """A batched product; by a constant matrix it is a linear layer."""
    if isinstance(b, Expr) and len(b.shape) == 2 and not isinstance(a, Expr) and len(c.shape_of(a)) >= 2:
        return linear(c, a, transposed(b))
    left, right = c.ref(a, DType.f32), c.ref(b, DType.f32)
    if left.rank == 1:
        left = c.reshape(left, (1, *left.shape))
    if right.rank == 1:
        right = c.reshape(right, (*right.shape, 1))
    shape = (*c.broadcast(left.shape[:-2], right.shape[:-2]), left.shape[-2], right.shape[-1])
    return c.reshape(c.node("matmul", [left, right], DType.f32, shape), c.shape)


def addmm(c: Context, bias: Operand, a: Operand, b: Operand, *, beta: float = 1, alpha: float = 1) -> Operand:
    """beta * bias + alpha * a @ b."""
    if alpha == 1 and beta == 1 and isinstance(b, Expr) and isinstance(bias, Expr) and len(bias.shape) == 1:
        return linear(c, a, transposed(b), bias)
    out = matmul(c, a, b)
    if alpha != 1:
        out = c.binary("mul", out, c.ref(float(alpha), DType.f32))
    extra = c.ref(bias, DType.f32)
    if beta != 1:
        extra = c.binary("mul", extra, c.ref(float(beta), DType.f32))
    return c.binary("add", out, extra)


TABLE: dict[str, Lowering] = {
    "mixplan.linear": linear,
    "mixplan.linear_q": linear_q,
    "mixplan.gated_linear": gated_linear,
    "mixplan.gated_linear_q": gated_linear_q,
    "mixplan.embedding": embedding,
    "mixplan.grouped_linear": grouped_linear,
    "aten.linear": linear,
    "aten.embedding": aten_embedding,
    "aten.matmul": matmul,
    "aten.mm": matmul,
    "aten.bmm": matmul,
    "aten.addmm": addmm,
    "aten.baddbmm": addmm,
}
