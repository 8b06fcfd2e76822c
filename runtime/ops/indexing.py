"""Ops that read or write at positions given by an index tensor.

An index i counts from the end where negative; one outside [-n, n) of its dim raises RequestError.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mixplan.runtime.dtypes import DType
from mixplan.runtime.errors import PlanError, RequestError
from mixplan.runtime.ops.base import Array, OpSpec, StepContext, TypedShape
from mixplan.runtime.ops.checks import INDICES, NUMBERS, need, need_dtype, only
from mixplan.runtime.ops.define import CheckedAttrs, define
from mixplan.runtime.ops.shapes import broadcast_all, check_axis, is_at_most, shape_text
from mixplan.runtime.plan import Shape

__all__ = ["INDEXING", "checked_index"]

_In = Sequence[TypedShape | None]
_Out = Sequence[TypedShape]


def checked_index(op: str, index: Array, size: int) -> Array:
    """The index with negative entries counted from the end; RequestError where one is outside the dim."""
    if index.size and (index.min() < -size or index.max() >= size):
        seen = index.max() if index.max() >= size else index.min()
        raise RequestError(f"Op {op}: index {seen} is out of range for a dim of {size} elements.")
    return np.where(index < 0, index + size, index)


def _take_infer(inputs: _In, attrs: CheckedAttrs, declared: _Out) -> _Out:
    dtype, shape = need("take", "x", inputs[0])
    index = need_dtype("take", "index", inputs[1], INDICES)
    axis = check_axis("take", attrs["axis"], len(shape))
    return [(dtype, (*shape[:axis], *index, *shape[axis + 1 :]))]


def _take(ctx: StepContext, attrs: CheckedAttrs, inputs: Sequence[Any]) -> Sequence[Array]:
    x, axis = inputs[0], attrs["axis"]
    return [np.take(x, checked_index("take", inputs[1], x.shape[axis]), axis=axis)]


def _fits(op: str, axis: int, index: Shape, other: Shape, name: str) -> None:
    """Raise unless `index` is, dim by dim, no larger than `other`; dim `axis` is free, or not if it is -1."""
    if len(index) != len(other) or not all(is_at_most(a, b) for i, (a, b) in enumerate(zip(index, other, strict=True)) if i != axis):
        raise PlanError(f"Op {op}: index {shape_text(index)} does not fit into {name} {shape_text(other)}.")


def _gather_infer(inputs: _In, attrs: CheckedAttrs, declared: _Out) -> _Out:
    dtype, shape = need("gather", "x", inputs[0])
    index = need_dtype("gather", "index", inputs[1], INDICES)
    _fits("gather", check_axis("gather", attrs["axis"], len(shape)), index, shape, "x")
    return [(dtype, index)]


def _window(x: Array, index: Array, axis: int) -> Array:
    """The part of x that an index of this shape reaches: as large as the index in every dim but `axis`."""
    return np.asarray(x[tuple(slice(None) if i == axis else slice(n) for i, n in enumerate(index.shape))])


def _gather(ctx: StepContext, attrs: CheckedAttrs, inputs: Sequence[Any]) -> Sequence[Array]:
    x, index, axis = inputs[0], inputs[1], attrs["axis"]
    return [np.take_along_axis(_window(x, index, axis), checked_index("gather", index, x.shape[axis]), axis=axis)]


def _scatter_infer(inputs: _In, attrs: CheckedAttrs, declared: _Out) -> _Out:
    dtype, shape = need("scatter", "x", inputs[0])
    index = need_dtype("scatter", "index", inputs[1], INDICES)
    source = need_dtype("scatter", "src", inputs[2], (dtype,))
    _fits("scatter", check_axis("scatter", attrs["axis"], len(shape)), index, shape, "x")
    _fits("scatter", -1, index, source, "src")
    if attrs["reduce"] not in ("none", "add"):
        raise PlanError(f"Op scatter: reduce {attrs['reduce']!r} is not known; allowed: none, add.")
    if attrs["reduce"] == "add":
        need_dtype("scatter", "x", inputs[0], NUMBERS)
    return [(dtype, shape)]


def _scatter(ctx: StepContext, attrs: CheckedAttrs, inputs: Sequence[Any]) -> Sequence[Array]:
    x, index, source, axis = inputs[0], inputs[1], inputs[2], attrs["axis"]
    out = x.copy()
    at = list(np.ix_(*(np.arange(n) for n in index.shape)))
    at[axis] = checked_index("scatter", index, x.shape[axis])
    values = source[tuple(slice(n) for n in index.shape)]
    if attrs["reduce"] == "add":
        np.add.at(out, tuple(at), values)
    else:
        out[tuple(at)] = values
    return [out]


def _index_add_infer(inputs: _In, attrs: CheckedAttrs, declared: _Out) -> _Out:
    shape = need_dtype("index_add", "x", inputs[0], NUMBERS)
    dtype = need("index_add", "x", inputs[0])[0]
    index = need_dtype("index_add", "index", inputs[1], INDICES)
    source = need_dtype("index_add", "src", inputs[2], (dtype,))
    axis = check_axis("index_add", attrs["axis"], len(shape))
    if len(index) != 1 or source != (*shape[:axis], index[0], *shape[axis + 1 :]):
        raise PlanError(
            f"Op index_add: index {shape_text(index)} and src {shape_text(source)} do not fit x {shape_text(shape)} along axis {axis}."
        )
    return [(dtype, shape)]


def _index_add(ctx: StepContext, attrs: CheckedAttrs, inputs: Sequence[Any]) -> Sequence[Array]:
    x, axis = inputs[0], attrs["axis"]
    out = x.copy()
    with np.errstate(all="ignore"):
        np.add.at(out, (slice(None),) * axis + (checked_index("index_add", inputs[1], x.shape[axis]),), inputs[2])
    return [out]


def _index_nd_infer(inputs: _In, attrs: CheckedAttrs, declared: _Out) -> _Out:
    dtype, shape = need("index_nd", "x", inputs[0])
    indices = [need_dtype("index_nd", f"indices[{i}]", value, INDICES) for i, value in enumerate(inputs[1:])]
    axis = check_axis("index_nd", attrs["axis"], len(shape))
    stop = axis + len(indices)
    if stop > len(shape):
        raise PlanError(f"Op index_nd: {len(indices)} index tensors from axis {axis} on are too many for x {shape_text(shape)}.")
    return [(dtype, (*shape[:axis], *broadcast_all(indices), *shape[stop:]))]


def _index_nd(ctx: StepContext, attrs: CheckedAttrs, inputs: Sequence[Any]) -> Sequence[Array]:
    x, axis = inputs[0], attrs["axis"]
    indices = [checked_index("index_nd", index, x.shape[axis + i]) for i, index in enumerate(inputs[1:])]
    return [x[(slice(None),) * axis + tuple(indices)]]


def _iota_infer(inputs: _In, attrs: CheckedAttrs, declared: _Out) -> _Out:
    shape = only("iota", declared)[1]
    check_axis("iota", attrs["axis"], len(shape))
    return [(DType.i64, shape)]


def _iota(ctx: StepContext, attrs: CheckedAttrs, inputs: Sequence[Any]) -> Sequence[Array]:
    shape, axis = ctx.out_shapes[0], attrs["axis"]
    along = np.arange(shape[axis], dtype=np.int64).reshape((-1,) + (1,) * (len(shape) - axis - 1))
    return [np.broadcast_to(along, shape)]


INDEXING: tuple[OpSpec, ...] = (
    define(
        "take",
        ("x", "index"),
        _take_infer,
        _take,
        "Slices of x along `axis` at the index; the index's dims stand in place of that axis.",
        attrs={"axis": int},
    ),
    define(
        "gather",
        ("x", "index"),
        _gather_infer,
        _gather,
        "y[p] = x[p with its `axis` entry replaced by index[p]]; y has the index's shape, which may be smaller than x in other dims.",
        attrs={"axis": int},
    ),
    define(
        "scatter",
        ("x", "index", "src"),
        _scatter_infer,
        _scatter,
        "x with src[p] written at p with its `axis` entry replaced by index[p], for every p of the index. `reduce` is none (of several "
        "writes to one place the last in row-major order stays) or add.",
        attrs={"axis": int, "reduce": str},
        defaults={"reduce": "none"},
    ),
    define(
        "index_add",
        ("x", "index", "src"),
        _index_add_infer,
        _index_add,
        "x with slice i of src added to slice index[i] of x, along `axis`; index has one dim.",
        attrs={"axis": int},
    ),
    define(
        "index_nd",
        ("x", "indices*"),
        _index_nd_infer,
        _index_nd,
        "x indexed by one tensor for each axis from `axis` on; the tensors broadcast, and their dims stand in place of those axes.",
        attrs={"axis": int},
    ),
    define("iota", (), _iota_infer, _iota, "The position along `axis`, i64, in the output's declared shape.", attrs={"axis": int}),
)
