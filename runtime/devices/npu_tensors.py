"""A region's constants as the external data of an ONNX model: which there are, where each stands, and its bytes.

The plan holds each weight once, packed for the CPU's kernels; the region's ONNX model names its tensors as external data of one file that
never exists on disk. The compile half writes the names and offsets, the device makes the bytes, and both take them from `region_tensors`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixplan.runtime.devices.npu_forms import WeightRules
from mixplan.runtime.devices.npu_weights import ELEMENT_BITS, OnnxTensor, node_weights, weight_array, weight_tensors
from mixplan.runtime.dtypes import DType, bf16_to_f32
from mixplan.runtime.plan import Plan, Region, Value

__all__ = ["ALIGNMENT", "Placed", "data_file", "plain_tensor", "region_tensors", "tensor_array", "tensor_bytes"]

ALIGNMENT = 64
"""Where a tensor may begin in the file of external data."""


@dataclass(frozen=True)
class Placed:
    """A tensor and where its bytes begin."""

    tensor: OnnxTensor
    offset: int


def plain_tensor(index: int, values: Sequence[Value]) -> OnnxTensor:
    """A constant that is not packed, in its own dtype; bf16 is widened."""
    value = values[index]
    kind = "f32" if value.dtype is DType.bf16 else value.dtype.value
    return OnnxTensor(value.name, kind, tuple(int(dim) for dim in value.shape if isinstance(dim, int)), "plain", value=index)


def region_tensors(plan: Plan, region: Region, rules: WeightRules) -> tuple[Placed, ...]:
    """All tensors of a region's constants, each once, with their places in its file of external data. rules: of the provider that the
    region is compiled for.
    """
    found: dict[str, OnnxTensor] = {}
    for node in plan.nodes[region.start : region.stop]:
        packed: set[int] = set()
        for weight in node_weights(node, plan.values):
            packed.update(weight.values)
            found.update((tensor.name, tensor) for tensor in weight_tensors(weight, plan.values, rules).all)
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
    if tensor.weight is not None:
        return weight_array(tensor, constant)
    array = constant(tensor.value)
    return bf16_to_f32(array) if array.dtype == np.uint16 else array
