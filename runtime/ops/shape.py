"""Ops that move elements without computing: reshape, permute, slice, concatenate, pad, mask triangles. All take any dtype."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mixplan.runtime.dtypes import DType, f32_to_bf16
from mixplan.runtime.errors import PlanError
from mixplan.runtime.ops.base import Array, OpSpec, StepContext, TypedShape
from mixplan.runtime.ops.checks import need, only
from mixplan.runtime.ops.define import CheckedAttrs, define
from mixplan.runtime.ops.shapes import add, broadcast, check_axes, check_axis, same_size, shape_text, strided, total

__all__ = ["SHAPE"]

_In = Sequence[TypedShape | None]
_Out = Sequence[TypedShape]


def _reshape_infer(inputs: _In, attrs: CheckedAttrs, declared: _Out) -> _Out:
    dtype, shape = need("reshape", "x", inputs[0])
    wanted = only("reshape", declared)[1]
    if not same_size(shape, wanted):
        raise PlanError(f"Op reshape: {shape_text(shape)} and the declared {shape_text(wanted)} do not hold equally many elements.")
    return [(dtype, wanted)]


def _reshape(ctx: StepContext, attrs: CheckedAttrs, inputs: Sequence[Any]) -> Sequence[Array]:
    return [inputs[0].reshape(ctx.out_shapes[0])]


def _expand_infer(inputs: _In, attrs: CheckedAttrs, declared: _Out) -> _Out:
    dtype, shape = need("expand", "x", inputs[0])
    wanted = only("expand", declared)[1]
    if broadcast(shape, wanted) != wanted:
        raise PlanError(f"Op expand: {shape_text(shape)} does not broadcast to the declared {shape_text(wanted)}.")
    return [(dtype, wanted)]


def _expand(ctx: StepContext, attrs: CheckedAttrs, inputs: Sequence[Any]) -> Sequence[Array]:
    return [np.broadcast_to(inputs[0], ctx.out_shapes[0])]


def _permute_infer(inputs: _In, attrs: CheckedAttrs, declared: _Out) -> _Out:
    dtype, shape = need("permute", "x", inputs[0])
    axes: tuple[int, ...] = attrs["axes"]
    if sorted(axes) != list(range(len(shape))):
        raise PlanError(f"Op permute: axes {list(axes)} are not an order of the {len(shape)} dims of {shape_text(shape)}.")
    return [(dtype, tuple(shape[axis] for axis in axes))]


def _permute(ctx: StepContext, attrs: CheckedAttrs, inputs: Sequence[Any]) -> Sequence[Array]:
    return [inputs[0].transpose(attrs["axes"])]


def _slice_infer(inputs: _In, attrs: CheckedAttrs, declared: _Out) -> _Out:
    dtype, shape = need("slice", "x", inputs[0])
    axis = check_axis("slice", attrs["axis"], len(shape))
    length = strided(shape[axis], attrs["start"], attrs["stop"], attrs["step"])
    return [(dtype, (*shape[:axis], length, *shape[axis + 1 :]))]


def _slice(ctx: StepContext, attrs: CheckedAttrs, inputs: Sequence[Any]) -> Sequence[Array]:
    stop = None if attrs["stop"] == -1 else attrs["stop"]
    return [inputs[0][(slice(None),) * attrs["axis"] + (slice(attrs["start"], stop, attrs["step"]),)]]


def _cat_infer(inputs: _In, attrs: CheckedAttrs, declared: _Out) -> _Out:
    given = [need("cat", f"xs[{i}]", value) for i, value in enumerate(inputs)]
    dtype, first = given[0]
    axis = check_axis("cat", attrs["axis"], len(first))
    for other, shape in given:
        if other is not dtype:
            raise PlanError(f"Op cat: inputs are {dtype.value} and {other.value}; all must have one dtype.", hint="Insert a cast.")
        if len(shape) != len(first) or any(a != b for i, (a, b) in enumerate(zip(shape, first, strict=True)) if i != axis):
            raise PlanError(f"Op cat: shapes {shape_text(first)} and {shape_text(shape)} differ beyond axis {axis}.")
    return [(dtype, (*first[:axis], total(shape[axis] for _, shape in given), *first[axis + 1 :]))]


def _cat(ctx: StepContext, attrs: CheckedAttrs, inputs: Sequence[Any]) -> Sequence[Array]:
    return [np.concatenate(inputs, axis=attrs["axis"])]


def _pad_infer(inputs: _In, attrs: CheckedAttrs, declared: _Out) -> _Out:
    dtype, shape = need("pad", "x", inputs[0])
    pads: tuple[int, ...] = attrs["pads"]
    if len(pads) != 2 * len(shape) or any(pad < 0 for pad in pads):
        raise PlanError(
            f"Op pad: pads {list(pads)} must be {2 * len(shape)} counts >= 0, before and after each dim of {shape_text(shape)}."
        )
    if dtype not in (DType.f32, DType.f16, DType.bf16) and not float(attrs["value"]).is_integer():
        raise PlanError(f"Op pad: value {attrs['value']} does not fit {dtype.value}.")
    return [(dtype, tuple(add(dim, pads[2 * i] + pads[2 * i + 1]) for i, dim in enumerate(shape)))]


def _pad(ctx: StepContext, attrs: CheckedAttrs, inputs: Sequence[Any]) -> Sequence[Array]:
    x, pads = inputs[0], attrs["pads"]
    value = f32_to_bf16(np.array([attrs["value"]], np.float32)) if x.dtype == np.uint16 else np.array([attrs["value"]]).astype(x.dtype)
    widths = [(pads[2 * i], pads[2 * i + 1]) for i in range(x.ndim)]
    return [np.pad(x, widths, constant_values=value[0]) if widths else x]


def _flip_infer(inputs: _In, attrs: CheckedAttrs, declared: _Out) -> _Out:
    value = need("flip", "x", inputs[0])
    check_axes("flip", attrs["axes"], len(value[1]))
    return [value]


def _flip(ctx: StepContext, attrs: CheckedAttrs, inputs: Sequence[Any]) -> Sequence[Array]:
    return [np.flip(inputs[0], axis=attrs["axes"])]


def _triangle(name: str, function: Callable[..., Array], doc: str) -> OpSpec:
    def infer(inputs: _In, attrs: CheckedAttrs, declared: _Out) -> _Out:
        value = need(name, "x", inputs[0])
        if len(value[1]) < 2:
            raise PlanError(f"Op {name}: input 'x' has shape {shape_text(value[1])}; it must have at least 2 dims.")
        return [value]

    def reference(ctx: StepContext, attrs: CheckedAttrs, inputs: Sequence[Any]) -> Sequence[Array]:
        return [function(inputs[0], attrs["diagonal"])]

    return define(name, ("x",), infer, reference, doc, attrs={"diagonal": int}, defaults={"diagonal": 0})


SHAPE: tuple[OpSpec, ...] = (
    define("reshape", ("x",), _reshape_infer, _reshape, "The same elements, in row-major order, in the output's declared shape."),
    define("permute", ("x",), _permute_infer, _permute, "Dims in another order: dim i of y is dim `axes`[i] of x.", attrs={"axes": tuple}),
    define("expand", ("x",), _expand_infer, _expand, "x broadcast to the output's declared shape."),
    define(
        "slice",
        ("x",),
        _slice_infer,
        _slice,
        "Every `step`-th element along `axis` from `start` up to, not including, `stop`; a stop of -1 is the end. "
        "The slice lies inside the dim in every step: no clamping.",
        attrs={"axis": int, "start": int, "stop": int, "step": int},
        defaults={"start": 0, "stop": -1, "step": 1},
    ),
    define("cat", ("xs*",), _cat_infer, _cat, "The inputs one after another along `axis`.", attrs={"axis": int}),
    define(
        "pad",
        ("x",),
        _pad_infer,
        _pad,
        "x with `pads` = (before dim 0, after dim 0, before dim 1, ...) elements of `value` around it.",
        attrs={"pads": tuple, "value": float},
        defaults={"value": 0.0},
    ),
    define("flip", ("x",), _flip_infer, _flip, "x in reverse order along `axes`.", attrs={"axes": tuple}),
    _triangle("tril", np.tril, "x with 0 where column - row > `diagonal`, in the last two dims."),
    _triangle("triu", np.triu, "x with 0 where column - row < `diagonal`, in the last two dims."),
)
