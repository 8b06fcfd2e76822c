"""A region's constants as tensors of an ONNX model: names, types, shapes, and the bytes made of the plan's packed weights.

The plan holds each weight once, packed for the CPU's kernels; the region's ONNX model names its tensors as external data of one file that
never exists on disk. The compile half writes the names and offsets, the device makes the bytes, and both take them from `region_tensors`.

A weight [N, K] of a product becomes a matrix [K, N], ready for `MatMul`; of an embedding, a table [N, K] of rows. Integer codes lose the
zero point of symmetric formats, so that a DequantizeLinear needs none:

| format | matrix | table |
|---|---|---|
| f32, bf16 | f32 | f32 |
| i8 i6 i5, symmetric | int8 | int8 |
| i4 i3 i2, symmetric | int4 | int8 |
| with zero points | the same, unsigned | uint8 |

Scales are f32, [N] per channel and [G, N] per group (in a table [N, G]). Formats with a codebook or with minima have no such form.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mixplan.runtime.devices.npu_names import whole
from mixplan.runtime.dtypes import DType, bf16_to_f32
from mixplan.runtime.errors import UnsupportedError
from mixplan.runtime.formats import WeightFormat
from mixplan.runtime.packing import Packed, split_gated, unpack, unpack_codes
from mixplan.runtime.plan import Node, Plan, Region, Value

__all__ = [
    "ALIGNMENT",
    "ELEMENT_BITS",
    "OnnxTensor",
    "Placed",
    "Weight",
    "WeightTensors",
    "data_file",
    "node_weights",
    "plain_tensor",
    "region_tensors",
    "tensor_array",
    "tensor_bytes",
    "unsupported_format",
    "weight_tensors",
]

ALIGNMENT = 64
"""Where a tensor may begin in the file of external data."""

ELEMENT_BITS = {"f32": 32, "f16": 16, "bf16": 16, "i64": 64, "i32": 32, "i16": 16, "u16": 16, "i8": 8, "u8": 8, "i4": 4, "u4": 4, "bool": 8}
"""Bits of an element of each type that a tensor may have."""

Form: TypeAlias = Literal["matrix", "table"]
Part: TypeAlias = Literal["plain", "dense", "codes", "scales", "zeros"]
_PACKED_AT = {"linear": 1, "gated_linear": 1, "embedding": 1, "linear_q": 3, "gated_linear_q": 3}


@dataclass(frozen=True)
class Weight:
    """One weight [rows, columns] that a node reads; `half` is 0 for the gate and 1 for the up part of a gated one, else -1.

    `values` are the plan's indices of the packed codes, scales and zeros, -1 where there are none.
    """

    values: tuple[int, int, int]
    format: WeightFormat
    rows: int
    columns: int
    form: Form
    half: int = -1


@dataclass(frozen=True)
class OnnxTensor:
    """One tensor; `kind` is its element type, `weight` what it is made of, or `value` the plan's index of a plain constant."""

    name: str
    kind: str
    shape: tuple[int, ...]
    part: Part
    value: int = -1
    weight: Weight | None = None

    @property
    def nbytes(self) -> int:
        """Bytes; two elements of 4 bits share one."""
        return -(-int(np.prod(self.shape, dtype=np.int64)) * ELEMENT_BITS[self.kind] // 8)


@dataclass(frozen=True)
class WeightTensors:
    """A weight's tensors: `codes` are the numbers themselves where there are no scales. block: columns that share a scale, 0 for all."""

    codes: OnnxTensor
    scales: OnnxTensor | None = None
    zeros: OnnxTensor | None = None
    block: int = 0


@dataclass(frozen=True)
class Placed:
    """A tensor and where its bytes begin."""

    tensor: OnnxTensor
    offset: int


def unsupported_format(fmt: WeightFormat) -> str:
    """Why a format has no ONNX form, "" where it has one."""
    if fmt.nonuniform:
        return f"format {fmt.name} has a codebook, which DequantizeLinear cannot express"
    if fmt.has_minimum:
        return f"format {fmt.name} has minima in place of zero points, which DequantizeLinear cannot express"
    return ""


def node_weights(node: Node, values: Sequence[Value]) -> tuple[Weight, ...]:
    """The packed weights that a node reads, in order; () where it has none."""
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
    form: Form = "table" if node.op == "embedding" else "matrix"
    halves = (0, 1) if node.op.startswith("gated") else (-1,)
    return tuple(Weight((weight, scales, zeros), fmt, rows, columns, form, half) for half in halves)


def weight_tensors(weight: Weight, values: Sequence[Value]) -> WeightTensors:
    """Names, types and shapes of a weight's tensors. UnsupportedError for a format that has no ONNX form."""
    fmt, matrix = weight.format, weight.form == "matrix"
    if reason := unsupported_format(fmt):
        raise UnsupportedError(f"The weight {values[weight.values[0]].name!r} cannot be put into an ONNX model: {reason}.")
    half = {-1: "", 0: ".gate", 1: ".up"}[weight.half]
    name = f"{values[weight.values[0]].name}{half}.{weight.form}"
    shape = (weight.columns, weight.rows) if matrix else (weight.rows, weight.columns)
    if not fmt.quantized:
        return WeightTensors(OnnxTensor(name, "f32", shape, "dense", weight=weight))
    kind = f"{'i' if fmt.symmetric else 'u'}{4 if matrix and fmt.bits <= 4 else 8}"
    groups = fmt.groups(weight.columns)
    per_scale = ((groups, weight.rows) if matrix else (weight.rows, groups)) if fmt.group_size or not matrix else (weight.rows,)
    return WeightTensors(
        OnnxTensor(f"{name}.codes", kind, shape, "codes", weight=weight),
        OnnxTensor(f"{name}.scales", "f32", per_scale, "scales", weight=weight),
        None if fmt.symmetric else OnnxTensor(f"{name}.zeros", kind, per_scale, "zeros", weight=weight),
        fmt.group_size,
    )


def plain_tensor(index: int, values: Sequence[Value]) -> OnnxTensor:
    """A constant that is not packed, in its own dtype; bf16 is widened."""
    value = values[index]
    kind = "f32" if value.dtype is DType.bf16 else value.dtype.value
    return OnnxTensor(value.name, kind, tuple(int(dim) for dim in value.shape if isinstance(dim, int)), "plain", value=index)


def region_tensors(plan: Plan, region: Region) -> tuple[Placed, ...]:
    """All tensors of a region's constants, each once, with their places in its file of external data."""
    found: dict[str, OnnxTensor] = {}
    for node in plan.nodes[region.start : region.stop]:
        packed: set[int] = set()
        for weight in node_weights(node, plan.values):
            parts = weight_tensors(weight, plan.values)
            packed.update(weight.values)
            found.update((tensor.name, tensor) for tensor in (parts.codes, parts.scales, parts.zeros) if tensor is not None)
        for index in node.inputs:
            if index >= 0 and index not in packed and plan.values[index].kind == "const" and plan.values[index].fill is None:
                tensor = plain_tensor(index, plan.values)
                found.setdefault(tensor.name, tensor)
    placed, offset = [], 0
    for tensor in found.values():
        placed.append(Placed(tensor, offset))
        offset += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
    return tuple(placed)


def data_file(placed: Sequence[Placed]) -> str:
    """The name of the file of external data, which tells a model of one layout from one of another."""
    text = "\n".join(f"{one.offset} {one.tensor.name} {one.tensor.kind} {one.tensor.shape}" for one in placed)
    return f"weights-{hashlib.sha256(text.encode()).hexdigest()[:16]}.bin"


def tensor_bytes(tensor: OnnxTensor, constant: Callable[[int], NDArray[Any]]) -> bytes:
    """A tensor's bytes, row-major and little-endian; of two elements of 4 bits the first is in the low half of their byte.

    `constant` gives the plan's constant of an index.
    """
    array = tensor_array(tensor, constant)
    if ELEMENT_BITS[tensor.kind] == 4:
        flat = array.reshape(-1).view(np.uint8) & 15
        flat = np.append(flat, np.uint8(0)) if flat.size % 2 else flat
        array = flat[0::2] | (flat[1::2] << 4)
    return np.ascontiguousarray(array).tobytes()


def tensor_array(tensor: OnnxTensor, constant: Callable[[int], NDArray[Any]]) -> NDArray[Any]:
    """A tensor's elements, [shape]; those of 4 bits in a byte each."""
    if tensor.weight is None:
        array = constant(tensor.value)
        return bf16_to_f32(array) if array.dtype == np.uint16 else array
    weight, fmt = tensor.weight, tensor.weight.format
    packed: Packed = {role: constant(i) for role, i in zip(("weight", "scales", "zeros"), weight.values, strict=True) if i >= 0}
    if weight.half >= 0:
        packed = split_gated(packed)[weight.half]
    if tensor.part == "dense":
        made: NDArray[Any] = unpack(fmt, packed, weight.rows, weight.columns)
    else:
        full = unpack_codes(fmt, packed)
        if tensor.part == "codes":
            made = full.codes[: weight.rows, : weight.columns]
            made = (made.astype(np.int16) - fmt.zero_point).astype(np.int8) if fmt.symmetric else made
        else:
            stored = full.scales if tensor.part == "scales" else full.zeros
            assert stored is not None
            made = stored[: weight.rows]
    return np.ascontiguousarray(made.T if weight.form == "matrix" else made).reshape(tensor.shape)
