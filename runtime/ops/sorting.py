"""Ops that order elements along an axis. Equal elements keep their order; nan counts as the largest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mixplan.runtime.dtypes import DType
from mixplan.runtime.errors import PlanError
from mixplan.runtime.ops.base import Array, OpSpec, StepContext, TypedShape
from mixplan.runtime.ops.checks import NUMBERS, need, need_dtype
from mixplan.runtime.ops.define import CheckedAttrs, define
from mixplan.runtime.ops.shapes import check_axis, is_at_most, shape_text

__all__ = ["SORTING"]


def _order(x: Array, axis: int, descending: bool) -> Array:
    """Stable sorting order, i64."""
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    # Sorting the reversed axis ascending and reversing the result puts equal elements back in their own order.
    backwards = np.flip(np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)
    return np.asarray(x.shape[axis] - 1 - backwards)


def _topk_infer(inputs: Sequence[TypedShape | None], attrs: CheckedAttrs, declared: Sequence[TypedShape]) -> Sequence[TypedShape]:
    shape = need_dtype("topk", "x", inputs[0], NUMBERS)
    axis, k = check_axis("topk", attrs["axis"], len(shape)), attrs["k"]
    if k < 0 or not is_at_most(k, shape[axis]):
        raise PlanError(f"Op topk: k is {k}, which is not in 0 to the size of axis {axis} of {shape_text(shape)}.")
    out = (*shape[:axis], k, *shape[axis + 1 :])
    return [(need("topk", "x", inputs[0])[0], out), (DType.i64, out)]


def _topk(ctx: StepContext, attrs: CheckedAttrs, inputs: Sequence[Any]) -> Sequence[Array]:
    x, axis = inputs[0], attrs["axis"]
    order = _order(x, axis, attrs["largest"])[(slice(None),) * axis + (slice(attrs["k"]),)]
    return [np.take_along_axis(x, order, axis=axis), order.astype(np.int64, copy=False)]


def _sort_infer(inputs: Sequence[TypedShape | None], attrs: CheckedAttrs, declared: Sequence[TypedShape]) -> Sequence[TypedShape]:
    shape = need_dtype("sort", "x", inputs[0], NUMBERS)
    check_axis("sort", attrs["axis"], len(shape))
    return [need("sort", "x", inputs[0]), (DType.i64, shape)]


def _sort(ctx: StepContext, attrs: CheckedAttrs, inputs: Sequence[Any]) -> Sequence[Array]:
    x, axis = inputs[0], attrs["axis"]
    order = _order(x, axis, attrs["descending"])
    return [np.take_along_axis(x, order, axis=axis), order.astype(np.int64, copy=False)]


SORTING: tuple[OpSpec, ...] = (
    define(
        "topk",
        ("x",),
        _topk_infer,
        _topk,
        "The `k` `largest` (or smallest) elements along `axis`, best first, and their indices (i64); of equals the lowest index first.",
        outputs=("values", "indices"),
        attrs={"k": int, "axis": int, "largest": bool},
        defaults={"largest": True},
    ),
    define(
        "sort",
        ("x",),
        _sort_infer,
        _sort,
        "The elements along `axis` in ascending (or `descending`) order, and where each came from (i64).",
        outputs=("values", "indices"),
        attrs={"axis": int, "descending": bool},
        defaults={"descending": False},
    ),
)
