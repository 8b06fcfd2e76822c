"""What a case is: one op, its inputs, the steps to run it in, and how far a result may be from the reference's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mixplan.runtime.dtypes import DType
from mixplan.runtime.plan import AttentionLayer, Attr, Shape, Sym

__all__ = [
    "EXACT",
    "STEPS",
    "Array",
    "Case",
    "Filled",
    "Fixed",
    "Given",
    "Input",
    "Make",
    "R",
    "Steps",
    "T",
    "Tolerance",
    "fixed",
    "one_sequence",
]

Array: TypeAlias = NDArray[Any]
Make: TypeAlias = Callable[[tuple[int, ...], np.random.Generator], Any]
T, R = Sym("T"), Sym("R")


def _normal(shape: tuple[int, ...], rng: np.random.Generator) -> Any:
    return rng.standard_normal(shape)


@dataclass(frozen=True)
class Given:
    """An array that another region makes, anew in every step: `make(shape, rng)`, standard normal numbers by default."""

    shape: Shape
    dtype: DType = DType.f32
    make: Make = _normal


@dataclass(frozen=True)
class Fixed:
    """A constant of the plan, such as a packed weight; bf16 as uint16 bit patterns."""

    array: Array
    dtype: DType


@dataclass(frozen=True)
class Filled:
    """A constant of one number, which takes no memory."""

    number: Any
    shape: Shape
    dtype: DType = DType.f32


Input: TypeAlias = Given | Fixed | Filled | None
_DTYPES = {dtype.numpy: dtype for dtype in DType if dtype is not DType.bf16}


def fixed(array: Any, dtype: DType | None = None) -> Fixed:
    """A constant of an array's own dtype; floats that are no float32 become that."""
    array = np.ascontiguousarray(array)
    if array.dtype == np.float64:
        array = array.astype(np.float32)
    return Fixed(array, dtype or (DType.bf16 if array.dtype == np.uint16 else _DTYPES[array.dtype]))


@dataclass(frozen=True)
class Tolerance:
    """|result - reference| may be `absolute + relative * |reference|`, and by one more `step` in a `share` of the elements.

    The last is for results that are rounded to integers, whose argument may fall on either side of a border.
    """

    relative: float = 0.0
    absolute: float = 0.0
    step: float = 0.0
    share: float = 0.0


EXACT = Tolerance()
"""Integers, booleans, and data that is only moved."""


@dataclass(frozen=True)
class Steps:
    """One step: the position and the sequence slot of each of T tokens, and R, how many of the first of them are logit rows."""

    positions: tuple[int, ...]
    slots: tuple[int, ...]
    rows: int


def one_sequence(tokens: int, rows: int) -> Steps:
    """A step of one sequence from its beginning."""
    return Steps(tuple(range(tokens)), (0,) * tokens, rows)


STEPS = (one_sequence(1, 1), one_sequence(7, 3), one_sequence(33, 5))
"""A single token, and numbers of tokens and rows that no vector width divides."""


@dataclass(frozen=True)
class Case:
    """One node. `declared`: the output's dtype and shape where the op leaves them open. One tolerance an output, or one for all.

    products: it sums products, which a target may say that it computes from rounded factors (`Capabilities.factor_errors`). layer: the KV
    cache of an attention node. complete: makes inputs that were drawn one by one agree with one another.
    """

    op: str
    label: str
    inputs: tuple[Input, ...]
    attrs: dict[str, Attr] = field(default_factory=dict)
    declared: tuple[DType, Shape] | None = None
    tolerances: tuple[Tolerance, ...] = (EXACT,)
    products: bool = False
    steps: tuple[Steps, ...] = STEPS
    layer: AttentionLayer | None = None
    complete: Callable[[list[Array]], None] | None = None
