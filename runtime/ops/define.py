"""Makes an OpSpec whose infer and reference see checked, complete arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from mixplan.runtime.errors import PlanError
from mixplan.runtime.ops.base import Array, Attrs, OpSpec, Signature, StepContext, TypedShape
from mixplan.runtime.plan import Attr

__all__ = ["CheckedAttrs", "define"]

CheckedAttrs: TypeAlias = dict[str, Any]
"""Attrs after the checks of this module: complete, each of its declared type."""

_SPELLED = {"inf": float("inf"), "-inf": float("-inf"), "nan": float("nan")}


def define(
    name: str,
    inputs: tuple[str, ...],
    infer: Callable[[Sequence[TypedShape | None], CheckedAttrs, Sequence[TypedShape]], Sequence[TypedShape]],
    reference: Callable[[StepContext, CheckedAttrs, Sequence[Any]], Sequence[Array]],
    doc: str,
    *,
    outputs: tuple[str, ...] = ("y",),
    attrs: dict[str, type] | None = None,
    defaults: dict[str, Attr] | None = None,
) -> OpSpec:
    """An op. The returned spec fills in default attrs; its infer also checks the number of inputs and every attr's type."""
    signature = Signature(inputs, outputs, attrs or {}, defaults or {})

    def checked_infer(given: Sequence[TypedShape | None], given_attrs: Attrs, declared: Sequence[TypedShape]) -> Sequence[TypedShape]:
        padded = _check_inputs(name, signature, given)
        if declared and len(declared) != len(outputs):
            raise PlanError(f"Op {name} has {len(outputs)} outputs; the plan declares {len(declared)}.")
        return tuple(infer(padded, _check_attrs(name, signature, given_attrs), tuple(declared)))

    def full_reference(ctx: StepContext, given_attrs: Attrs, given: Sequence[Array | None]) -> Sequence[Array]:
        padded = [*given, *[None] * (_count(signature)[1] - len(given))]
        return reference(ctx, _check_attrs(name, signature, given_attrs), padded)

    return OpSpec(name, signature, checked_infer, full_reference, doc)


def _count(signature: Signature) -> tuple[int, int]:
    """Least number of inputs, and the number of named ones."""
    optional = sum(entry.endswith("?") for entry in signature.inputs)
    return len(signature.inputs) - optional, len(signature.inputs)


def _check_inputs(name: str, signature: Signature, given: Sequence[TypedShape | None]) -> list[TypedShape | None]:
    least, named = _count(signature)
    variadic = bool(signature.inputs) and signature.inputs[-1].endswith("*")
    if len(given) < least or (len(given) > named and not variadic):
        raise PlanError(f"Op {name} got {len(given)} inputs; its signature is ({', '.join(signature.inputs)}).")
    padded = [*given, *[None] * (named - len(given))]
    for position, value in enumerate(padded):
        entry = signature.inputs[min(position, named - 1)]
        if value is None and not entry.endswith("?"):
            raise PlanError(f"Op {name} needs its input {entry!r} (number {position}), but it is left out.")
    return padded


def _check_attrs(name: str, signature: Signature, given: Attrs) -> Attrs:
    unknown = sorted(set(given) - set(signature.attrs))
    if unknown:
        raise PlanError(f"Op {name} has no attribute {unknown[0]!r}; allowed: {', '.join(signature.attrs) or 'none'}.")
    out: Attrs = {}
    for key, kind in signature.attrs.items():
        if key in given:
            out[key] = _check_attr(name, key, kind, given[key])
        elif key in signature.defaults:
            out[key] = signature.defaults[key]
        else:
            raise PlanError(f"Op {name} needs the attribute {key!r} ({kind.__name__}).")
    return out


def _check_attr(name: str, key: str, kind: type, value: object) -> Attr:
    """`value` as `kind`. Floats may be given as integers, or spelled "inf", "-inf", "nan"; lists of ints as list or tuple."""
    if kind is bool and isinstance(value, bool):
        return value
    if kind is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if kind is float:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        if isinstance(value, str) and value in _SPELLED:
            return _SPELLED[value]
    if kind is str and isinstance(value, str):
        return value
    if kind is tuple and isinstance(value, (tuple, list)) and all(isinstance(v, int) and not isinstance(v, bool) for v in value):
        return tuple(value)
    wanted = "a list of integers" if kind is tuple else kind.__name__
    raise PlanError(f"Op {name}: attribute {key!r} is {value!r}; it must be {wanted}.")
