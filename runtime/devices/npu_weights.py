"""The packed weights that a node reads, as tensors of an ONNX model: names, types, shapes, and the arrays made of the plan's constants.

A weight [N, K] of a product becomes a matrix [K, N], ready for `MatMul`; of an embedding, a table [N, K] of rows. Scales, zero points and
minima are [N] per channel and [G, N] per group (in a table [N, G]); scales and minima are f32. How codes stand is in `npu_forms.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mixplan.runtime.devices.npu_forms import COMMON, WeightForm, WeightRules, weight_form
from mixplan.runtime.devices.npu_names import whole
from mixplan.runtime.dtypes import DType
from mixplan.runtime.formats import LANES, WeightFormat, ceil_div
from mixplan.runtime.packing import Packed, Quantized, code_values, slice_blocks, split_gated, unpack, unpack_codes
from mixplan.runtime.plan import Node, Value

__all__ = ["ELEMENT_BITS", "OnnxTensor", "Weight", "WeightTensors", "node_weights", "weight_array", "weight_tensors"]

ELEMENT_BITS = {"f32": 32, "f16": 16, "bf16": 16, "i64": 64, "i32": 32, "i16": 16, "u16": 16, "i8": 8, "u8": 8, "i4": 4, "u4": 4, "bool": 8}
"""Bits of an element of each type that a tensor may have."""

Form: TypeAlias = Literal["matrix", "table"]
Part: TypeAlias = Literal["plain", "dense", "codes", "scales", "zeros", "minima"]
_PACKED_AT = {"linear": 1, "gated_linear": 1, "embedding": 1, "linear_q": 3, "gated_linear_q": 3, "grouped_linear": 2}


@dataclass(frozen=True)
class Weight:
    """One weight [rows, columns] that a node reads. gated: its rows are those of the gate and then those of the up part, which the packed
    arrays interleave. expert: its place among the experts of a grouped one, else -1.

    `values` are the plan's indices of the packed codes, scales and zeros, -1 where there are none.
    """

    values: tuple[int, int, int]
    format: WeightFormat
    rows: int
    columns: int
    form: Form
    gated: bool = False
    expert: int = -1

    @property
    def suffix(self) -> str:
        """What tells its tensors from those of others in the same packed arrays."""
        return f".expert_{self.expert}" if self.expert >= 0 else ""


@dataclass(frozen=True)
class OnnxTensor:
    """One tensor; `kind` is its element type, `weight` what it is made of and `stored` how, or `value` the plan's index of a plain
    constant.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    part: Part
    value: int = -1
    weight: Weight | None = None
    stored: WeightForm | None = None

    @property
    def nbytes(self) -> int:
        """Bytes; two elements of 4 bits share one."""
        return -(-int(np.prod(self.shape, dtype=np.int64)) * ELEMENT_BITS[self.kind] // 8)


@dataclass(frozen=True)
class WeightTensors:
    """A weight's tensors: `codes` are the numbers themselves where there are no scales. block: columns that share a scale, 0 for all."""

    form: WeightForm
    codes: OnnxTensor
    scales: OnnxTensor | None = None
    zeros: OnnxTensor | None = None
    minima: OnnxTensor | None = None
    block: int = 0

    @property
    def all(self) -> tuple[OnnxTensor, ...]:
        """Those that there are."""
        return tuple(one for one in (self.codes, self.scales, self.zeros, self.minima) if one is not None)


def node_weights(node: Node, values: Sequence[Value]) -> tuple[Weight, ...]:
    """The packed weights that a node reads, in order; () where it has none. OptionError for a format that is not known."""
    first = _PACKED_AT.get(node.op)
    if first is None:
        return ()
    weight, scales, zeros = ([*node.inputs, -1, -1, -1])[first : first + 3]
    fmt = WeightFormat.of(
        str(node.attrs["format"]),
        whole(node, "group_size"),
        zeros < 0,
        values[scales].dtype if scales >= 0 else None,
        values[zeros].dtype if zeros >= 0 else DType.u8,
    )
    rows, columns = whole(node, "rows"), whole(node, "columns")
    indices = (weight, scales, zeros)
    if node.op == "grouped_linear":
        return tuple(Weight(indices, fmt, rows, columns, "matrix", expert=one) for one in range(whole(node, "experts")))
    form: Form = "table" if node.op == "embedding" else "matrix"
    gated = node.op.startswith("gated")
    return (Weight(indices, fmt, 2 * rows if gated else rows, columns, form, gated),)


def weight_tensors(weight: Weight, values: Sequence[Value], rules: WeightRules) -> WeightTensors:
    """Names, types and shapes of a weight's tensors."""
    fmt, matrix = weight.format, weight.form == "matrix"
    form = weight_form(fmt, rules, table=not matrix)
    name = f"{values[weight.values[0]].name}{weight.suffix}.{weight.form}"
    shape = (weight.columns, weight.rows) if matrix else (weight.rows, weight.columns)
    if form.stored == "numbers":
        return WeightTensors(form, OnnxTensor(name, "f32", shape, "dense", weight=weight, stored=form))
    groups = fmt.groups(weight.columns)
    per_scale = ((groups, weight.rows) if matrix else (weight.rows, groups)) if fmt.group_size or not matrix else (weight.rows,)

    def part(which: Part, kind: str, dims: tuple[int, ...]) -> OnnxTensor:
        return OnnxTensor(f"{name}.{which}", kind, dims, which, weight=weight, stored=form)

    return WeightTensors(
        form,
        part("codes", form.kind, shape),
        part("scales", "f32", per_scale),
        part("zeros", form.kind, per_scale) if form.zeros else None,
        # A row for each group, as they are the right side of a product.
        part("minima", "f32", (groups, weight.rows) if matrix else per_scale) if form.minima else None,
        fmt.group_size,
    )


def weight_array(tensor: OnnxTensor, constant: Callable[[int], NDArray[Any]]) -> NDArray[Any]:
    """A tensor's elements, [shape]; those of 4 bits in a byte each. `constant` gives the plan's constant of an index."""
    weight, form = tensor.weight, tensor.stored
    assert weight is not None and form is not None
    fmt = weight.format
    packed: Packed = {role: constant(i) for role, i in zip(("weight", "scales", "zeros"), weight.values, strict=True) if i >= 0}
    pieces: tuple[Packed, ...] = (packed,)
    if weight.gated:
        pieces = split_gated(packed)
    elif weight.expert >= 0:
        blocks = ceil_div(weight.rows, LANES)
        pieces = (slice_blocks(packed, weight.expert * blocks, (weight.expert + 1) * blocks),)
    rows = weight.rows // len(pieces)
    parts = [_rows(tensor.part, form, fmt, piece, rows, weight.columns) for piece in pieces]
    made = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return np.ascontiguousarray(made.T if weight.form == "matrix" else made).reshape(tensor.shape)


def _rows(part: Part, form: WeightForm, fmt: WeightFormat, packed: Packed, rows: int, columns: int) -> NDArray[Any]:
    if part == "dense":
        return unpack(fmt, packed, rows, columns)
    made = _part(part, form, fmt, unpack_codes(fmt, packed))[:rows]
    return made[:, :columns] if part == "codes" else made


def _part(part: Part, form: WeightForm, fmt: WeightFormat, full: Quantized) -> NDArray[Any]:
    if part == "codes":
        if form.stored == "middle":
            return (full.codes.astype(np.int16) - fmt.zero_point).astype(np.int8)
        return code_values(fmt, full.codes)
    if part == "scales":
        return full.scales / np.float32(COMMON) if form.scales == "after" else full.scales
    assert full.zeros is not None
    if part == "zeros":
        return full.zeros
    if fmt.has_minimum:
        return np.asarray(full.zeros + np.float32(fmt.zero_point) * full.scales)
    return np.asarray((np.float32(fmt.zero_point) - full.zeros.astype(np.float32)) * full.scales)
