"""Checks that ops' shape rules share: dtypes, ranks, exact shapes, packed weights."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mixplan.runtime.dtypes import DTYPE_OF_NUMPY, DType
from mixplan.runtime.errors import OptionError, PlanError
from mixplan.runtime.formats import WeightFormat
from mixplan.runtime.ops.base import Array, TypedShape
from mixplan.runtime.ops.define import CheckedAttrs
from mixplan.runtime.ops.shapes import shape_text
from mixplan.runtime.packing import Packed, packed_layout
from mixplan.runtime.plan import Shape

__all__ = [
    "FLOATS",
    "INDICES",
    "INTEGERS",
    "NUMBERS",
    "PLAIN",
    "array_format",
    "check_exact",
    "check_packed",
    "need",
    "need_dtype",
    "need_rank",
    "only",
    "packed_arrays",
    "weight_format",
]

FLOATS = (DType.f32,)
"""Dtypes that ops compute in; f16 and bf16 are only moved and cast."""
INTEGERS = (DType.i64, DType.i32, DType.i16, DType.i8, DType.u8)
NUMBERS = (*FLOATS, *INTEGERS)
PLAIN = (*NUMBERS, DType.bool)
INDICES = (DType.i64, DType.i32)


def need(op: str, name: str, value: TypedShape | None) -> TypedShape:
    """The input, which must not be left out."""
    if value is None:
        raise PlanError(f"Op {op} needs its input {name!r}.")
    return value


def need_dtype(op: str, name: str, value: TypedShape | None, allowed: Collection[DType]) -> Shape:
    """The input's shape, after a check of its dtype."""
    dtype, shape = need(op, name, value)
    if dtype not in allowed:
        raise PlanError(f"Op {op}: input {name!r} is {dtype.value}; allowed: {', '.join(d.value for d in allowed)}.")
    return shape


def need_rank(op: str, name: str, shape: Shape, rank: int) -> Shape:
    """The shape, after a check that it has `rank` dims."""
    if len(shape) != rank:
        raise PlanError(f"Op {op}: input {name!r} has shape {shape_text(shape)}; it must have {rank} dims.")
    return shape


def check_exact(op: str, name: str, value: TypedShape | None, dtype: DType, shape: Shape) -> None:
    """Raise unless the input is left out, or has exactly this dtype and shape."""
    if value is not None and value != (dtype, shape):
        seen = f"{value[0].value} {shape_text(value[1])}"
        raise PlanError(f"Op {op}: input {name!r} is {seen}; it must be {dtype.value} {shape_text(shape)}.")


def only(op: str, declared: Sequence[TypedShape]) -> TypedShape:
    """The one declared output, for ops whose output the inputs leave open."""
    if len(declared) != 1:
        raise PlanError(f"Op {op} takes its output's dtype or shape from the plan, which declares {len(declared)} outputs.")
    return declared[0]


def weight_format(op: str, attrs: CheckedAttrs, scales: DType | None, zeros: DType | None) -> WeightFormat:
    """The packed format that the attrs and the dtypes of scales and zeros name; asymmetric where zeros are present."""
    try:
        return WeightFormat.of(attrs["format"], attrs["group_size"], zeros is None, scales, zeros or DType.u8)
    except OptionError as error:
        raise PlanError(f"Op {op}: {error.message}") from None


def check_packed(
    op: str, attrs: CheckedAttrs, weight: TypedShape | None, scales: TypedShape | None, zeros: TypedShape | None, copies: int = 1
) -> WeightFormat:
    """The weight's format, after a check that all its packed arrays have the dtypes and shapes that the attrs imply."""
    for key in ("rows", "columns"):
        if attrs[key] < 1:
            raise PlanError(f"Op {op}: attribute {key!r} is {attrs[key]}; it must be at least 1.")
    fmt = weight_format(op, attrs, scales and scales[0], zeros and zeros[0])
    layout = packed_layout(fmt, attrs["rows"], attrs["columns"], copies)
    for role, value in (("weight", weight), ("scales", scales), ("zeros", zeros)):
        if (value is not None) != (role in layout):
            state = "left out" if value is None else "given"
            raise PlanError(f"Op {op}: input {role!r} is {state}, which does not fit format {fmt.name}.")
        if role in layout:
            check_exact(op, role, value, *layout[role])
    return fmt


def array_format(op: str, attrs: CheckedAttrs, scales: Array | None, zeros: Array | None) -> WeightFormat:
    """weight_format of arrays."""
    return weight_format(op, attrs, *(None if a is None else DTYPE_OF_NUMPY[a.dtype] for a in (scales, zeros)))


def packed_arrays(weight: Array | None, scales: Array | None, zeros: Array | None) -> Packed:
    """The packed arrays that are present, by role."""
    given = {"weight": weight, "scales": scales, "zeros": zeros}
    return {role: array for role, array in given.items() if array is not None}
