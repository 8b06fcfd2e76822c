"""A linear layer whose weight is chosen for each row: the experts of a mixture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mixplan.runtime.dtypes import DType
from mixplan.runtime.errors import PlanError, RequestError
from mixplan.runtime.formats import LANES, ceil_div
from mixplan.runtime.ops.base import Array, OpSpec, StepContext, TypedShape
from mixplan.runtime.ops.checks import FLOATS, INDICES, array_format, check_exact, check_packed, need_dtype, need_rank, packed_arrays
from mixplan.runtime.ops.define import CheckedAttrs, define
from mixplan.runtime.ops.linear_math import product
from mixplan.runtime.ops.shapes import shape_text
from mixplan.runtime.packing import slice_blocks

__all__ = ["GROUPED_LINEAR"]


def _infer(inputs: Sequence[TypedShape | None], attrs: CheckedAttrs, declared: Sequence[TypedShape]) -> Sequence[TypedShape]:
    x, ids, weight, scales, zeros, bias = inputs
    if attrs["experts"] < 1:
        raise PlanError(f"Op grouped_linear: attribute 'experts' is {attrs['experts']}; it must be at least 1.")
    check_packed("grouped_linear", attrs, weight, scales, zeros, copies=attrs["experts"])
    shape = need_rank("grouped_linear", "x", need_dtype("grouped_linear", "x", x, FLOATS), 3)
    tokens, chosen = need_rank("grouped_linear", "expert_ids", need_dtype("grouped_linear", "expert_ids", ids, INDICES), 2)
    if shape not in ((tokens, chosen, attrs["columns"]), (tokens, 1, attrs["columns"])):
        raise PlanError(
            f"Op grouped_linear: input 'x' has shape {shape_text(shape)}; with expert_ids {shape_text((tokens, chosen))} it must be "
            f"{shape_text((tokens, chosen, attrs['columns']))}, or 1 in the middle."
        )
    check_exact("grouped_linear", "bias", bias, DType.f32, (attrs["experts"], attrs["rows"]))
    return [(DType.f32, (tokens, chosen, attrs["rows"]))]


def _reference(ctx: StepContext, attrs: CheckedAttrs, inputs: Sequence[Any]) -> Sequence[Array]:
    x, ids, weight, scales, zeros, bias = inputs
    experts, rows = attrs["experts"], attrs["rows"]
    if ids.size and (ids.min() < 0 or ids.max() > experts):
        seen = ids.min() if ids.min() < 0 else ids.max()
        raise RequestError(f"Op grouped_linear: expert {seen} is out of range; allowed: 0 to {experts - 1}, or {experts} for none.")
    fmt = array_format("grouped_linear", attrs, scales, zeros)
    packed, blocks = packed_arrays(weight, scales, zeros), ceil_div(rows, LANES)
    x = np.broadcast_to(x, (*ids.shape, x.shape[-1]))
    out = np.zeros((*ids.shape, rows), np.float32)
    for expert in np.unique(ids).tolist():
        if expert == experts:
            continue
        chosen = ids == expert
        y = product(fmt, slice_blocks(packed, expert * blocks, (expert + 1) * blocks), x[chosen], rows)
        with np.errstate(all="ignore"):
            out[chosen] = y if bias is None else y + bias[expert]
    return [out]


GROUPED_LINEAR: tuple[OpSpec, ...] = (
    define(
        "grouped_linear",
        ("x", "expert_ids", "weight", "scales?", "zeros?", "bias?"),
        _infer,
        _reference,
        "y[t, j] = x[t, j] W[e]^T + bias[e] with e = expert_ids[t, j]. x is [T, J, `columns`], or [T, 1, `columns`] for all j; the packed "
        "weights [`rows`, `columns`] of the `experts` follow one another, each padded to 16 rows; bias is [`experts`, `rows`]. The id "
        "`experts` stands for no expert and gives zeros.",
        attrs={"format": str, "rows": int, "columns": int, "group_size": int, "experts": int},
        defaults={"group_size": 0},
    ),
)
