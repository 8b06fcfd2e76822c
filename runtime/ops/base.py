"""What defines an op: signature, shape rule, numpy reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from mixplan.runtime.dtypes import DType
from mixplan.runtime.plan import Attr, Shape

__all__ = ["Array", "Attrs", "OpSpec", "Signature", "StepContext", "TypedShape"]

Array: TypeAlias = NDArray[Any]
Attrs: TypeAlias = dict[str, Attr]
TypedShape: TypeAlias = tuple[DType, Shape]


class AttentionCache(Protocol):
    """The reference device's KV store, one per attention layer."""

    def append(self, layer: int, k: Array, v: Array, step: StepContext) -> None:
        """Store the step's keys [T, kv_heads, k_dim] and values [T, kv_heads, v_dim] at (sequence, position)."""

    def read(self, layer: int, sequence: int, length: int) -> tuple[Array, Array]:
        """Keys [length, kv_heads, k_dim] and values [length, kv_heads, v_dim] of a sequence's first `length` positions."""


class StepContext(msgspec.Struct, frozen=True):
    """What an op may know of the step besides its inputs: for T tokens, each token's sequence slot and position."""

    sequences: NDArray[np.int32]
    positions: NDArray[np.int32]
    cache: AttentionCache | None = None
    # Sizes of the output arrays, for ops whose output shape is not implied by their inputs (reshape, expand).
    out_shapes: tuple[tuple[int, ...], ...] = ()
    out_dtypes: tuple[DType, ...] = ()


class Signature(msgspec.Struct, frozen=True):
    """Names of inputs ("x"; "bias?" optional; "xs*" one or more, only at the end), outputs, and attrs with their types.

    An attr type is one of bool, int, float, str, or tuple for a list of ints; a default makes it optional.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...] = ("y",)
    attrs: dict[str, type] = {}
    defaults: dict[str, Attr] = {}


Infer: TypeAlias = Callable[[Sequence[TypedShape | None], Attrs, Sequence[TypedShape]], Sequence[TypedShape]]
Reference: TypeAlias = Callable[[StepContext, Attrs, Sequence[Array | None]], Sequence[Array]]


class OpSpec(msgspec.Struct, frozen=True):
    """An op of the plan.

    infer(inputs, attrs, declared) gives the outputs' dtype and shape, raising PlanError where the inputs do not fit; `declared` is what the
    plan says of the outputs, and is trusted only where the inputs leave it open (reshape, expand, cast), after a check that it is possible.
    reference(ctx, attrs, inputs) computes the outputs in numpy.
    """

    name: str
    signature: Signature
    infer: Infer
    reference: Reference
    doc: str = ""
