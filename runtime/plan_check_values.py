"""Checks of a plan's values: shapes that can be, sizes that fit, constants that are well formed."""

from __future__ import annotations

from math import prod

from mixplan.runtime.dtypes import DType
from mixplan.runtime.errors import PlanError
from mixplan.runtime.ops.shapes import shape_text
from mixplan.runtime.plan import Plan, Shape, Sym, Value, dim_value
from mixplan.runtime.plan_json import fill_number

__all__ = ["MAX_BYTES", "MAX_DIM", "MAX_RANK", "check_values"]

MAX_DIM = 1 << 31
MAX_BYTES = 1 << 40
MAX_RANK = 16
_MAX_NAME = 400
_INT_RANGE = {
    DType.i64: (-(1 << 63), 1 << 63),
    DType.i32: (-(1 << 31), 1 << 31),
    DType.i16: (-(1 << 15), 1 << 15),
    DType.i8: (-128, 128),
    DType.u8: (0, 256),
}


def check_values(plan: Plan) -> None:
    """Each value on its own: name, shape, size at the largest step, and what its kind allows."""
    names: dict[str, int] = {}
    # Few shapes serve many values.
    sound: set[tuple[Shape, DType]] = set()
    for index, value in enumerate(plan.values):
        where = f"Value {index} {value.name[:_MAX_NAME]!r}"
        if len(value.name) > _MAX_NAME:
            raise PlanError(f"{where} has a name of {len(value.name)} characters; at most {_MAX_NAME} are allowed.")
        # A tap or an error must mean one value; constants are told apart by their tensors.
        if value.kind != "const" and names.setdefault(value.name, index) != index:
            raise PlanError(f"{where} has the same name as value {names[value.name]}; names of inputs and node outputs must differ.")
        if (value.shape, value.dtype) not in sound:
            _check_shape(value.shape, value.dtype, plan.max_step_tokens, where)
            sound.add((value.shape, value.dtype))
        if value.kind != "const":
            if value.tensor is not None or value.fill is not None:
                raise PlanError(f"{where} is of kind {value.kind!r}, and only constants have a tensor or a fill.")
        else:
            _check_constant(value, where)


def _check_shape(shape: Shape, dtype: DType, max_tokens: int, where: str) -> None:
    if len(shape) > MAX_RANK:
        raise PlanError(f"{where} has {len(shape)} dimensions; at most {MAX_RANK} are allowed.")
    for dim in shape:
        if isinstance(dim, Sym) and not (1 <= dim.mul < MAX_DIM and -MAX_DIM < dim.add < MAX_DIM):
            raise PlanError(f"{where} has the dimension {shape_text((dim,))}: the factor must be 1 or more, and both below 2^31.")
    # Dimensions grow with T and R, so the ends of the range decide: no rows of a one-token step, all rows of the largest.
    for tokens, rows in ((1, 0), (max_tokens, max_tokens)):
        sizes = [dim_value(dim, tokens=tokens, rows=rows) for dim in shape]
        if min(sizes, default=0) < 0 or max(sizes, default=0) >= MAX_DIM:
            raise PlanError(f"{where} has shape {shape_text(shape)}: at {tokens} tokens a dimension is negative or 2^31 and more.")
        # The product without zeros, so that a zero cannot hide a size that no array can have.
        if prod(max(size, 1) for size in sizes) * dtype.itemsize > MAX_BYTES:
            raise PlanError(f"{where} has shape {shape_text(shape)}: at {tokens} tokens that is more than 2^40 bytes.")


def _check_constant(value: Value, where: str) -> None:
    if (value.tensor is None) == (value.fill is None):
        raise PlanError(f"{where} is a constant and needs either a tensor or a fill.")
    if any(isinstance(dim, Sym) for dim in value.shape):
        raise PlanError(f"{where} is a constant of shape {shape_text(value.shape)}; a constant's shape cannot depend on the step.")
    if value.tensor is not None:
        nbytes = prod(dim for dim in value.shape if isinstance(dim, int)) * value.dtype.itemsize
        if value.tensor.nbytes != nbytes:
            raise PlanError(
                f"{where} of shape {shape_text(value.shape)} and dtype {value.dtype.value} takes {nbytes} bytes, "
                f"but its tensor has {value.tensor.nbytes}."
            )
        if value.tensor.offset < 0:
            raise PlanError(f"{where} has the negative offset {value.tensor.offset}.")
        return
    number = fill_number(value)
    if value.dtype is DType.bool:
        fits = isinstance(number, bool)
    elif value.dtype in _INT_RANGE:
        low, high = _INT_RANGE[value.dtype]
        fits = isinstance(number, int) and not isinstance(number, bool) and low <= number < high
    else:
        fits = isinstance(number, float) or (isinstance(number, int) and not isinstance(number, bool) and abs(number) < 1 << 63)
    if not fits:
        raise PlanError(f"{where} is filled with {str(number)[:40]}, which a {value.dtype.value} cannot hold.")
