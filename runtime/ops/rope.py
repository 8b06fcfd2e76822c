"""Rotary position embedding (Su et al., arXiv:2104.09864), on token-major heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mixplan.runtime.dtypes import DType
from mixplan.runtime.errors import PlanError
from mixplan.runtime.ops.base import Array, OpSpec, StepContext, TypedShape
from mixplan.runtime.ops.checks import FLOATS, need_dtype, need_rank
from mixplan.runtime.ops.define import CheckedAttrs, define
from mixplan.runtime.ops.shapes import shape_text

__all__ = ["ROPE"]

_STYLES = ("half", "interleaved")


def _infer(inputs: Sequence[TypedShape | None], attrs: CheckedAttrs, declared: Sequence[TypedShape]) -> Sequence[TypedShape]:
    x, cos, sin = (need_dtype("rope", name, value, FLOATS) for name, value in zip(("x", "cos", "sin"), inputs, strict=True))
    need_rank("rope", "x", x, 4)
    size, rotated = x[-1], cos[-1] if cos else 0
    if not isinstance(size, int) or not isinstance(rotated, int) or not 0 < rotated <= size or rotated % 2:
        raise PlanError(f"Op rope: cos {shape_text(cos)} must have an even last dim of at most {size}, the size of a head.")
    if cos != (*x[:2], rotated) or sin != cos:
        wanted = shape_text((*x[:2], rotated))
        raise PlanError(f"Op rope: cos {shape_text(cos)} and sin {shape_text(sin)} do not fit x {shape_text(x)}; both must be {wanted}.")
    if attrs["style"] not in _STYLES:
        raise PlanError(f"Op rope: style {attrs['style']!r} is not known; allowed: {', '.join(_STYLES)}.")
    return [(DType.f32, x)]


def _reference(ctx: StepContext, attrs: CheckedAttrs, inputs: Sequence[Any]) -> Sequence[Array]:
    x, cos, sin = inputs
    rotated = cos.shape[-1]
    head = x[..., :rotated]
    turned = np.empty_like(head)
    if attrs["style"] == "half":
        half = rotated // 2
        turned[..., :half], turned[..., half:] = -head[..., half:], head[..., :half]
    else:
        turned[..., 0::2], turned[..., 1::2] = -head[..., 1::2], head[..., 0::2]
    out = x.copy()
    with np.errstate(all="ignore"):
        out[..., :rotated] = head * cos[:, :, None] + turned * sin[:, :, None]
    return [out]


ROPE: tuple[OpSpec, ...] = (
    define(
        "rope",
        ("x", "cos", "sin"),
        _infer,
        _reference,
        "x [B, T, H, D] with its first Dr dims turned: x * cos + turn(x) * sin; the others pass through. cos and sin are [B, T, Dr]. "
        "`style` half: turn(x) = (-second half, first half) of the Dr dims. interleaved: turn maps each pair (a, b) to (-b, a), and cos "
        "and sin hold each angle twice in a row.",
        attrs={"style": str},
    ),
)
