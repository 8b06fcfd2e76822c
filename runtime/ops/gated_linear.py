"""Gated linear layers: activation(x Wg^T) * (x Wu^T), on one packed weight that alternates gate and up blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mixplan.runtime.dtypes import DType
from mixplan.runtime.ops.activations import activation
from mixplan.runtime.ops.base import Array, OpSpec, StepContext, TypedShape
from mixplan.runtime.ops.checks import array_format, check_exact, check_packed, packed_arrays
from mixplan.runtime.ops.define import CheckedAttrs, define
from mixplan.runtime.ops.linear import LINEAR_ATTRS, LINEAR_DEFAULTS, check_quantized, leading
from mixplan.runtime.ops.linear_math import activate_dtype, check_activation_dtype, product, quantized_product
from mixplan.runtime.packing import split_gated

__all__ = ["GATED_LINEAR"]

_ATTRS: dict[str, type] = {**LINEAR_ATTRS, "activation": str}


def _infer(inputs: Sequence[TypedShape | None], attrs: CheckedAttrs, declared: Sequence[TypedShape]) -> Sequence[TypedShape]:
    x, weight, scales, zeros, bias = inputs
    check_packed("gated_linear", attrs, weight, scales, zeros, copies=2)
    check_activation_dtype("gated_linear", attrs)
    activation("gated_linear", attrs["activation"])
    check_exact("gated_linear", "bias", bias, DType.f32, (2, attrs["rows"]))
    return [(DType.f32, (*leading("gated_linear", x, attrs["columns"]), attrs["rows"]))]


def _combine(attrs: CheckedAttrs, gate: Array, up: Array, bias: Array | None) -> Sequence[Array]:
    with np.errstate(all="ignore"):
        if bias is not None:
            gate, up = gate + bias[0], up + bias[1]
        return [activation("gated_linear", attrs["activation"])(gate) * up]


def _gated(ctx: StepContext, attrs: CheckedAttrs, inputs: Sequence[Any]) -> Sequence[Array]:
    x, weight, scales, zeros, bias = inputs
    fmt = array_format("gated_linear", attrs, scales, zeros)
    x = activate_dtype(x, attrs["activation_dtype"])
    gate, up = (product(fmt, half, x, attrs["rows"]) for half in split_gated(packed_arrays(weight, scales, zeros)))
    return _combine(attrs, gate, up, bias)


def _q_infer(inputs: Sequence[TypedShape | None], attrs: CheckedAttrs, declared: Sequence[TypedShape]) -> Sequence[TypedShape]:
    weight, scales, zeros, bias = inputs[3:]
    fmt = check_packed("gated_linear_q", attrs, weight, scales, zeros, copies=2)
    check_activation_dtype("gated_linear_q", attrs)
    activation("gated_linear_q", attrs["activation"])
    check_exact("gated_linear_q", "bias", bias, DType.f32, (2, attrs["rows"]))
    return [(DType.f32, (*check_quantized("gated_linear_q", inputs, fmt, attrs["columns"]), attrs["rows"]))]


def _gated_q(ctx: StepContext, attrs: CheckedAttrs, inputs: Sequence[Any]) -> Sequence[Array]:
    q, q_scales, q_sums, weight, scales, zeros, bias = inputs
    fmt = array_format("gated_linear_q", attrs, scales, zeros)
    halves = split_gated(packed_arrays(weight, scales, zeros))
    gate, up = (quantized_product(fmt, half, q, q_scales, q_sums, attrs["rows"]) for half in halves)
    return _combine(attrs, gate, up, bias)


GATED_LINEAR: tuple[OpSpec, ...] = (
    define(
        "gated_linear",
        ("x", "weight", "scales?", "zeros?", "bias?"),
        _infer,
        _gated,
        "activation(x Wg^T + bias[0]) * (x Wu^T + bias[1]). The weight packs gate and up [`rows`, `columns`] in alternating blocks of 16 "
        "rows, gate first; bias is [2, `rows`]. `activation` is silu, gelu, gelu_tanh, relu, sigmoid, relu2 (the square of relu) or tanh.",
        attrs=_ATTRS,
        defaults=LINEAR_DEFAULTS,
    ),
    define(
        "gated_linear_q",
        ("q", "q_scales", "q_sums", "weight", "scales", "zeros?", "bias?"),
        _q_infer,
        _gated_q,
        "`gated_linear` on activations quantized as for `linear_q`.",
        attrs=_ATTRS,
        defaults=LINEAR_DEFAULTS,
    ),
)
