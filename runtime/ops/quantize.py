"""Dynamic quantization of activations to int8."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mixplan.runtime.dtypes import DType
from mixplan.runtime.errors import PlanError
from mixplan.runtime.formats import GROUP_SIZES, ceil_div, round_up
from mixplan.runtime.ops.base import Array, OpSpec, StepContext, TypedShape
from mixplan.runtime.ops.checks import FLOATS, need_dtype
from mixplan.runtime.ops.define import CheckedAttrs, define
from mixplan.runtime.ops.shapes import shape_text
from mixplan.runtime.packing import quantize_act
from mixplan.runtime.plan import Shape

__all__ = ["QUANTIZE", "QUANTIZED_OUTPUTS", "quantized_shapes"]

QUANTIZED_OUTPUTS = ("q", "scales", "sums")


def quantized_shapes(op: str, shape: Shape, group: int) -> Sequence[TypedShape]:
    """Dtypes and shapes of q, scales and sums of activations of this shape."""
    if group not in (0, *GROUP_SIZES):
        raise PlanError(f"Op {op}: group is {group}; allowed: 0 (the whole row), {', '.join(map(str, GROUP_SIZES))}.")
    if not shape or not isinstance(shape[-1], int) or shape[-1] < 1:
        raise PlanError(f"Op {op}: input 'x' has shape {shape_text(shape)}; its last dim must be of fixed size, at least 1.")
    groups = ceil_div(shape[-1], group) if group else 1
    per_group: TypedShape = (DType.f32, (*shape[:-1], groups))
    return [(DType.i8, (*shape[:-1], round_up(shape[-1], group or 32))), per_group, per_group]


def _infer(inputs: Sequence[TypedShape | None], attrs: CheckedAttrs, declared: Sequence[TypedShape]) -> Sequence[TypedShape]:
    return quantized_shapes("quantize_act", need_dtype("quantize_act", "x", inputs[0], FLOATS), attrs["group"])


def _reference(ctx: StepContext, attrs: CheckedAttrs, inputs: Sequence[Any]) -> Sequence[Array]:
    return quantize_act(inputs[0], attrs["group"])


QUANTIZE: tuple[OpSpec, ...] = (
    define(
        "quantize_act",
        ("x",),
        _infer,
        _reference,
        "x [.., K] as int8, symmetric, with one scale for each row and `group` of columns (0: for each row). scale = absmax / 127, or 1 "
        "where absmax is below 2^-100; q = x * (1 / scale) rounded half to even, [.., Kp] with K padded by zeros to a multiple of the "
        "group, or of 32; sums = scale * sum(q).",
        outputs=QUANTIZED_OUTPUTS,
        attrs={"group": int},
        defaults={"group": 0},
    ),
)
