"""Rows of a packed weight, by token id. The weight may be shared with a linear (tied embeddings)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mixplan.runtime.dtypes import DType
from mixplan.runtime.errors import RequestError
from mixplan.runtime.ops.base import Array, OpSpec, StepContext, TypedShape
from mixplan.runtime.ops.checks import INDICES, array_format, check_packed, need_dtype, packed_arrays
from mixplan.runtime.ops.define import CheckedAttrs, define
from mixplan.runtime.packing import unpack_rows

__all__ = ["EMBEDDING"]


def _infer(inputs: Sequence[TypedShape | None], attrs: CheckedAttrs, declared: Sequence[TypedShape]) -> Sequence[TypedShape]:
    ids, weight, scales, zeros = inputs
    check_packed("embedding", attrs, weight, scales, zeros)
    return [(DType.f32, (*need_dtype("embedding", "ids", ids, INDICES), attrs["columns"]))]


def _reference(ctx: StepContext, attrs: CheckedAttrs, inputs: Sequence[Any]) -> Sequence[Array]:
    ids, weight, scales, zeros = inputs
    rows, columns = attrs["rows"], attrs["columns"]
    # The padding rows of the last block exist, but are no one's embedding.
    if ids.size and (ids.min() < 0 or ids.max() >= rows):
        raise RequestError(f"Op embedding: id {ids.min() if ids.min() < 0 else ids.max()} is out of range; allowed: 0 to {rows - 1}.")
    fmt = array_format("embedding", attrs, scales, zeros)
    return [unpack_rows(fmt, packed_arrays(weight, scales, zeros), ids.reshape(-1), columns).reshape(*ids.shape, columns)]


EMBEDDING: tuple[OpSpec, ...] = (
    define(
        "embedding",
        ("ids", "weight", "scales?", "zeros?"),
        _infer,
        _reference,
        "Row ids[p] of the packed weight [`rows`, `columns`], dequantized, at y[p, :]. An id outside the rows raises RequestError.",
        attrs={"format": str, "rows": int, "columns": int, "group_size": int},
        defaults={"group_size": 0},
    ),
)
