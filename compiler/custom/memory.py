"""A lowered kernel whose float inputs and results lie in memory in a narrower dtype; between, it computes in f32 as before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from mixplan.compiler.lowering import Lowered
from mixplan.runtime.dtypes import DType, bf16_to_f32, f32_to_bf16
from mixplan.runtime.plan import Node, Value

__all__ = ["in_memory", "narrowed", "widened"]

Array = NDArray[Any]


def in_memory(lowered: Lowered, dtype: DType) -> Lowered:
    """The same, with a cast behind each f32 input and in front of each f32 output; as it is for f32."""
    if dtype is DType.f32:
        return lowered
    values, first, last = list(lowered.values), [], []
    wide: dict[int, int] = {}
    for index, value in enumerate(lowered.values):
        if value.kind == "input" and value.dtype is DType.f32:
            values[index] = msgspec.structs.replace(value, dtype=dtype)
            wide[index] = len(values)
            values.append(Value(f"{value.name}_wide", "node", DType.f32, value.shape))
            first.append(Node("cast", (index,), (wide[index],), name=f"widen_{value.name}"))
    nodes = [msgspec.structs.replace(node, inputs=tuple(wide.get(one, one) for one in node.inputs)) for node in lowered.nodes]
    outputs = []
    for number, output in enumerate(lowered.outputs):
        source = wide.get(output, output)
        if values[source].dtype is not DType.f32:
            outputs.append(source)
            continue
        outputs.append(len(values))
        values.append(Value(f"result{number}", "node", dtype, values[source].shape))
        last.append(Node("cast", (source,), (outputs[-1],), name=f"narrow_{number}"))
    return replace(lowered, values=values, nodes=[*first, *nodes, *last], outputs=tuple(outputs))


def narrowed(array: Array, dtype: DType) -> Array:
    """A float array as the dtype lies in memory; others as they are."""
    if array.dtype != np.float32 or dtype is DType.f32:
        return array
    return f32_to_bf16(array) if dtype is DType.bf16 else array.astype(np.float16)


def widened(array: Array) -> Array:
    """A result back in f32."""
    if array.dtype == np.uint16:
        return np.asarray(bf16_to_f32(array))  # an array of a number, too
    return array.astype(np.float32) if array.dtype == np.float16 else array
