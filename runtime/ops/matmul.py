"""Matrix product of two activations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mixplan.runtime.dtypes import DType
from mixplan.runtime.errors import PlanError
from mixplan.runtime.ops.base import Array, OpSpec, StepContext, TypedShape
from mixplan.runtime.ops.checks import FLOATS, need_dtype
from mixplan.runtime.ops.define import CheckedAttrs, define
from mixplan.runtime.ops.shapes import broadcast, shape_text

__all__ = ["MATMUL"]


def _infer(inputs: Sequence[TypedShape | None], attrs: CheckedAttrs, declared: Sequence[TypedShape]) -> Sequence[TypedShape]:
    a, b = (need_dtype("matmul", name, value, FLOATS) for name, value in zip("ab", inputs, strict=True))
    if len(a) < 2 or len(b) < 2 or a[-1] != b[-2]:
        raise PlanError(f"Op matmul: shapes {shape_text(a)} and {shape_text(b)} do not fit; they must be [.., M, K] and [.., K, N].")
    return [(DType.f32, (*broadcast(a[:-2], b[:-2]), a[-2], b[-1]))]


def _reference(ctx: StepContext, attrs: CheckedAttrs, inputs: Sequence[Any]) -> Sequence[Array]:
    with np.errstate(all="ignore"):
        return [np.matmul(inputs[0], inputs[1])]


MATMUL: tuple[OpSpec, ...] = (
    define("matmul", ("a", "b"), _infer, _reference, "a [.., M, K] times b [.., K, N], f32; the leading dims broadcast."),
)
