"""Linear layers on packed weights: float activations, and activations quantized to int8."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mixplan.runtime.dtypes import DType
from mixplan.runtime.errors import PlanError
from mixplan.runtime.formats import WeightFormat
from mixplan.runtime.ops.base import Array, OpSpec, StepContext, TypedShape
from mixplan.runtime.ops.checks import FLOATS, array_format, check_exact, check_packed, need_dtype, packed_arrays
from mixplan.runtime.ops.define import CheckedAttrs, define
from mixplan.runtime.ops.linear_math import activate_dtype, check_activation_dtype, product, quantized_product
from mixplan.runtime.ops.shapes import shape_text
from mixplan.runtime.plan import Attr, Shape

__all__ = ["LINEAR", "LINEAR_ATTRS", "LINEAR_DEFAULTS", "check_quantized", "leading"]

LINEAR_ATTRS: dict[str, type] = {"format": str, "rows": int, "columns": int, "group_size": int, "activation_dtype": str}
LINEAR_DEFAULTS: dict[str, Attr] = {"group_size": 0, "activation_dtype": "f32"}


def leading(op: str, x: TypedShape | None, columns: int) -> Shape:
    """All dims of x f32 [..., columns] but the last."""
    shape = need_dtype(op, "x", x, FLOATS)
    if not shape or shape[-1] != columns:
        raise PlanError(f"Op {op}: input 'x' has shape {shape_text(shape)}; its last dim must be {columns}, the weight's columns.")
    return shape[:-1]


def check_quantized(op: str, inputs: Sequence[TypedShape | None], fmt: WeightFormat, columns: int) -> Shape:
    """The leading dims of activations q i8 [..., Kp], scales f32 [..., G], sums f32 [..., G], checked against the weight's format."""
    if not fmt.quantized or fmt.floating:
        raise PlanError(f"Op {op}: format {fmt.name} cannot be multiplied with int8 activations; allowed: integers and their codebooks.")
    shape = need_dtype(op, "q", inputs[0], (DType.i8,))
    if not shape or shape[-1] != fmt.padded_columns(columns):
        raise PlanError(f"Op {op}: input 'q' has shape {shape_text(shape)}; its last dim must be {fmt.padded_columns(columns)}.")
    for name, value in zip(("q_scales", "q_sums"), inputs[1:3], strict=True):
        check_exact(op, name, value, DType.f32, (*shape[:-1], fmt.groups(columns)))
    return shape[:-1]


def _linear_infer(inputs: Sequence[TypedShape | None], attrs: CheckedAttrs, declared: Sequence[TypedShape]) -> Sequence[TypedShape]:
    x, weight, scales, zeros, bias, residual = inputs
    check_packed("linear", attrs, weight, scales, zeros)
    check_activation_dtype("linear", attrs)
    out = (*leading("linear", x, attrs["columns"]), attrs["rows"])
    check_exact("linear", "bias", bias, DType.f32, (attrs["rows"],))
    check_exact("linear", "residual", residual, DType.f32, out)
    return [(DType.f32, out)]


def _plus(y: Array, bias: Array | None, residual: Array | None) -> Sequence[Array]:
    """y + bias + residual; y is this op's own and may be overwritten."""
    with np.errstate(all="ignore"):
        if bias is not None:
            y += bias
        if residual is not None:
            y += residual
    return [y]


def _linear(ctx: StepContext, attrs: CheckedAttrs, inputs: Sequence[Any]) -> Sequence[Array]:
    x, weight, scales, zeros, bias, residual = inputs
    fmt = array_format("linear", attrs, scales, zeros)
    x = activate_dtype(x, attrs["activation_dtype"])
    return _plus(product(fmt, packed_arrays(weight, scales, zeros), x, attrs["rows"]), bias, residual)


def _linear_q_infer(inputs: Sequence[TypedShape | None], attrs: CheckedAttrs, declared: Sequence[TypedShape]) -> Sequence[TypedShape]:
    weight, scales, zeros, bias, residual = inputs[3:]
    fmt = check_packed("linear_q", attrs, weight, scales, zeros)
    check_activation_dtype("linear_q", attrs)
    out = (*check_quantized("linear_q", inputs, fmt, attrs["columns"]), attrs["rows"])
    check_exact("linear_q", "bias", bias, DType.f32, (attrs["rows"],))
    check_exact("linear_q", "residual", residual, DType.f32, out)
    return [(DType.f32, out)]


def _linear_q(ctx: StepContext, attrs: CheckedAttrs, inputs: Sequence[Any]) -> Sequence[Array]:
    q, q_scales, q_sums, weight, scales, zeros, bias, residual = inputs
    fmt = array_format("linear_q", attrs, scales, zeros)
    return _plus(quantized_product(fmt, packed_arrays(weight, scales, zeros), q, q_scales, q_sums, attrs["rows"]), bias, residual)


LINEAR: tuple[OpSpec, ...] = (
    define(
        "linear",
        ("x", "weight", "scales?", "zeros?", "bias?", "residual?"),
        _linear_infer,
        _linear,
        "x [.., `columns`] times the transposed packed weight [`rows`, `columns`], plus bias [`rows`], plus residual of y's shape. "
        "`activation_dtype` bf16 rounds x to bf16 first; e4m3 rounds each row to 8-bit floats (runtime/float8.py), with "
        "scale = absmax / 448, or 1 where absmax is below 2^-100. Sums are f32.",
        attrs=LINEAR_ATTRS,
        defaults=LINEAR_DEFAULTS,
    ),
    define(
        "linear_q",
        ("q", "q_scales", "q_sums", "weight", "scales", "zeros?", "bias?", "residual?"),
        _linear_q_infer,
        _linear_q,
        "`linear` on activations that `quantize_act` made with the weight's `group_size`: y[n] = sum over groups g of scales[n,g] * "
        "(q_scales[g] * dot(codes[n], q) - zero[n,g] * q_sums[g]), with exact integer dots. `activation_dtype` has no effect.",
        attrs=LINEAR_ATTRS,
        defaults=LINEAR_DEFAULTS,
    ),
)
