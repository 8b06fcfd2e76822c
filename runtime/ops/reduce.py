"""Ops that combine the elements along axes: sums and extremes, softmax, cumulative sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mixplan.runtime.dtypes import DType
from mixplan.runtime.errors import PlanError
from mixplan.runtime.ops.base import Array, OpSpec, StepContext, TypedShape
from mixplan.runtime.ops.checks import FLOATS, NUMBERS, need, need_dtype
from mixplan.runtime.ops.define import CheckedAttrs, define
from mixplan.runtime.ops.shapes import check_axes, check_axis, least
from mixplan.runtime.plan import Dim, Shape

__all__ = ["REDUCE"]

_BOOL = (DType.bool,)

# name: (function of (x, axis=, keepdims=), dtypes, whether it needs at least one element, meaning)
_REDUCTIONS: dict[str, tuple[Callable[..., Any], tuple[DType, ...], bool, str]] = {
    "sum": (np.sum, NUMBERS, False, "Sum, in the dtype of x."),
    "mean": (np.mean, FLOATS, True, "Arithmetic mean."),
    "prod": (np.prod, NUMBERS, False, "Product, in the dtype of x."),
    "amax": (np.amax, NUMBERS, True, "Largest element; nan if there is one."),
    "amin": (np.amin, NUMBERS, True, "Smallest element; nan if there is one."),
    "any": (np.any, _BOOL, False, "Whether any element is true."),
    "all": (np.all, _BOOL, False, "Whether all elements are true."),
}


def _reduced(shape: Shape, axes: Sequence[int], keepdims: bool) -> Shape:
    if keepdims:
        return tuple(1 if i in axes else dim for i, dim in enumerate(shape))
    return tuple(dim for i, dim in enumerate(shape) if i not in axes)


def _need_elements(op: str, dims: Sequence[Dim]) -> None:
    if any(least(dim) < 1 for dim in dims):
        raise PlanError(f"Op {op} needs at least one element along its axes; a dim may be empty.")


def _reduction(name: str, function: Callable[..., Any], dtypes: tuple[DType, ...], elements: bool, doc: str) -> OpSpec:
    def infer(inputs: Sequence[TypedShape | None], attrs: CheckedAttrs, declared: Sequence[TypedShape]) -> Sequence[TypedShape]:
        shape = need_dtype(name, "x", inputs[0], dtypes)
        axes = check_axes(name, attrs["axes"], len(shape))
        if elements:
            _need_elements(name, [shape[axis] for axis in axes])
        return [(need(name, "x", inputs[0])[0], _reduced(shape, axes, bool(attrs["keepdims"])))]

    def reference(ctx: StepContext, attrs: CheckedAttrs, inputs: Sequence[Any]) -> Sequence[Array]:
        with np.errstate(all="ignore"):
            out = function(inputs[0], axis=attrs["axes"], keepdims=attrs["keepdims"])
        # numpy widens sums of small integers; the plan keeps the dtype.
        return [np.asarray(out).astype(inputs[0].dtype, copy=False)]

    return define(
        name, ("x",), infer, reference, f"{doc} Over `axes`.", attrs={"axes": tuple, "keepdims": bool}, defaults={"keepdims": False}
    )


def _arg(name: str, function: Callable[..., Any], doc: str) -> OpSpec:
    def infer(inputs: Sequence[TypedShape | None], attrs: CheckedAttrs, declared: Sequence[TypedShape]) -> Sequence[TypedShape]:
        shape = need_dtype(name, "x", inputs[0], NUMBERS)
        axis = check_axis(name, attrs["axis"], len(shape))
        _need_elements(name, [shape[axis]])
        return [(DType.i64, _reduced(shape, (axis,), bool(attrs["keepdims"])))]

    def reference(ctx: StepContext, attrs: CheckedAttrs, inputs: Sequence[Any]) -> Sequence[Array]:
        return [np.asarray(function(inputs[0], axis=attrs["axis"], keepdims=attrs["keepdims"]), np.int64)]

    return define(name, ("x",), infer, reference, doc, attrs={"axis": int, "keepdims": bool}, defaults={"keepdims": False})


def _softmax(x: Array, axis: int) -> Array:
    shifted = np.exp(x - np.max(x, axis=axis, keepdims=True, initial=-np.inf))
    return np.asarray(shifted / np.sum(shifted, axis=axis, keepdims=True))


def _logsumexp(x: Array, axis: int) -> Array:
    top = np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    # Where all are -inf (or one is inf) the difference to the largest is nan; the answer is the largest itself.
    safe = np.where(np.isfinite(top), top, np.float32(0))
    return np.asarray(np.log(np.sum(np.exp(x - safe), axis=axis, keepdims=True)) + safe)


def _log_softmax(x: Array, axis: int) -> Array:
    shifted = x - np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    return np.asarray(shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True)))


def _cumsum(x: Array, axis: int) -> Array:
    return np.asarray(np.cumsum(x, axis=axis, dtype=x.dtype))


def _along(name: str, function: Callable[[Array, int], Array], dtypes: tuple[DType, ...], doc: str) -> OpSpec:
    """An op that keeps the shape and works along one axis."""

    def infer(inputs: Sequence[TypedShape | None], attrs: CheckedAttrs, declared: Sequence[TypedShape]) -> Sequence[TypedShape]:
        shape = need_dtype(name, "x", inputs[0], dtypes)
        check_axis(name, attrs["axis"], len(shape))
        return [need(name, "x", inputs[0])]

    def reference(ctx: StepContext, attrs: CheckedAttrs, inputs: Sequence[Any]) -> Sequence[Array]:
        with np.errstate(all="ignore"):
            return [function(inputs[0], attrs["axis"])]

    return define(name, ("x",), infer, reference, doc, attrs={"axis": int})


def _logsumexp_infer(inputs: Sequence[TypedShape | None], attrs: CheckedAttrs, declared: Sequence[TypedShape]) -> Sequence[TypedShape]:
    shape = need_dtype("logsumexp", "x", inputs[0], FLOATS)
    axis = check_axis("logsumexp", attrs["axis"], len(shape))
    return [(DType.f32, _reduced(shape, (axis,), bool(attrs["keepdims"])))]


def _logsumexp_reference(ctx: StepContext, attrs: CheckedAttrs, inputs: Sequence[Any]) -> Sequence[Array]:
    with np.errstate(all="ignore"):
        out = _logsumexp(inputs[0], attrs["axis"])
    return [out if attrs["keepdims"] else np.squeeze(out, axis=attrs["axis"])]


REDUCE: tuple[OpSpec, ...] = (
    *(_reduction(name, *entry) for name, entry in _REDUCTIONS.items()),
    _arg("argmax", np.argmax, "Index (i64) of the largest element along `axis`, the lowest such index; the first nan if there is one."),
    _arg("argmin", np.argmin, "Index (i64) of the smallest element along `axis`, the lowest such index; the first nan if there is one."),
    _along("softmax", _softmax, FLOATS, "exp(x - max) / sum(exp(x - max)) along `axis`."),
    _along("log_softmax", _log_softmax, FLOATS, "log(softmax(x)) along `axis`, without underflow."),
    _along("cumsum", _cumsum, NUMBERS, "Running sum along `axis`, each element included in its own sum, in the dtype of x."),
    define(
        "logsumexp",
        ("x",),
        _logsumexp_infer,
        _logsumexp_reference,
        "log(sum(exp(x))) along `axis`, without overflow.",
        attrs={"axis": int, "keepdims": bool},
        defaults={"keepdims": False},
    ),
)
