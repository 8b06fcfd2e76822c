"""Normalization over the last dim, alone or followed by the quantization of its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mixplan.runtime.dtypes import DType
from mixplan.runtime.errors import PlanError
from mixplan.runtime.ops.base import Array, OpSpec, StepContext, TypedShape
from mixplan.runtime.ops.checks import FLOATS, check_exact, need_dtype
from mixplan.runtime.ops.define import CheckedAttrs, define
from mixplan.runtime.ops.quantize import QUANTIZED_OUTPUTS, quantized_shapes
from mixplan.runtime.packing import quantize_act
from mixplan.runtime.plan import Shape

__all__ = ["NORMS"]

_Norm = Callable[..., Array]


def _rms_norm(x: Array, weight: Array | None, *, eps: float) -> Array:
    wide = x.astype(np.float64)
    normal = wide / np.sqrt(np.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return np.asarray(normal if weight is None else normal * weight, np.float32)


def _layer_norm(x: Array, weight: Array | None, bias: Array | None, *, eps: float) -> Array:
    wide = x.astype(np.float64)
    centred = wide - np.mean(wide, axis=-1, keepdims=True)
    normal = centred / np.sqrt(np.mean(centred * centred, axis=-1, keepdims=True) + eps)
    normal = normal if weight is None else normal * weight
    return np.asarray(normal if bias is None else normal + bias, np.float32)


def _check(op: str, inputs: Sequence[TypedShape | None], attrs: CheckedAttrs) -> Shape:
    """The shape of x; weight and bias must be vectors of its last dim."""
    shape = need_dtype(op, "x", inputs[0], FLOATS)
    if not shape or not isinstance(shape[-1], int) or shape[-1] < 1:
        raise PlanError(f"Op {op}: input 'x' must have a last dim of fixed size, at least 1.")
    if not attrs["eps"] >= 0:
        raise PlanError(f"Op {op}: eps is {attrs['eps']}; it must be at least 0.")
    for name, value in zip(("weight", "bias"), inputs[1:], strict=False):
        check_exact(op, name, value, DType.f32, shape[-1:])
    return shape


def _plain(name: str, names: tuple[str, ...], function: _Norm, doc: str) -> OpSpec:
    def infer(inputs: Sequence[TypedShape | None], attrs: CheckedAttrs, declared: Sequence[TypedShape]) -> Sequence[TypedShape]:
        return [(DType.f32, _check(name, inputs, attrs))]

    def reference(ctx: StepContext, attrs: CheckedAttrs, inputs: Sequence[Any]) -> Sequence[Array]:
        with np.errstate(all="ignore"):
            return [function(*inputs, eps=attrs["eps"])]

    return define(name, names, infer, reference, doc, attrs={"eps": float})


def _quantized(name: str, names: tuple[str, ...], function: _Norm, doc: str) -> OpSpec:
    def infer(inputs: Sequence[TypedShape | None], attrs: CheckedAttrs, declared: Sequence[TypedShape]) -> Sequence[TypedShape]:
        return quantized_shapes(name, _check(name, inputs, attrs), attrs["group"])

    def reference(ctx: StepContext, attrs: CheckedAttrs, inputs: Sequence[Any]) -> Sequence[Array]:
        with np.errstate(all="ignore"):
            return quantize_act(function(*inputs, eps=attrs["eps"]), attrs["group"])

    attr_types = {"eps": float, "group": int}
    return define(name, names, infer, reference, doc, outputs=QUANTIZED_OUTPUTS, attrs=attr_types, defaults={"group": 0})


NORMS: tuple[OpSpec, ...] = (
    _plain("rms_norm", ("x", "weight?"), _rms_norm, "x / sqrt(mean(x^2) + `eps`) * weight, over the last dim (Zhang and Sennrich, 2019)."),
    _plain(
        "layer_norm",
        ("x", "weight?", "bias?"),
        _layer_norm,
        "(x - mean) / sqrt(variance + `eps`) * weight + bias, over the last dim, with the biased variance (Ba et al., 2016).",
    ),
    _quantized("rms_norm_quant", ("x", "weight?"), _rms_norm, "`rms_norm`, then `quantize_act` of the result."),
    _quantized("layer_norm_quant", ("x", "weight?", "bias?"), _layer_norm, "`layer_norm`, then `quantize_act` of the result."),
)
