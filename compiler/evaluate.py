"""A lowered graph run in memory by the ops' numpy references: what tests and pass authors compare with torch, without writing a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixplan.compiler.constants import Constants
from mixplan.compiler.lowering import Lowered
from mixplan.compiler.packed import dense_array, packed_arrays
from mixplan.runtime.dtypes import DType
from mixplan.runtime.ops import op_spec
from mixplan.runtime.ops.base import StepContext
from mixplan.runtime.plan import Value, dim_value
from mixplan.runtime.plan_json import fill_number

__all__ = ["constant_array", "evaluate"]

Array = NDArray[Any]


def evaluate(
    lowered: Lowered, constants: Constants, inputs: Mapping[str, Array], *, tap: Callable[[str, Array], None] | None = None
) -> list[Array]:
    """The outputs for step inputs by name (token_ids and position_ids [1, T], logit_rows [R]); one sequence, without a KV cache.

    `tap` sees each node's outputs by name.
    """
    arrays = list(inputs.values())
    tokens = next((a.shape[-1] for name, a in inputs.items() if name != "logit_rows"), arrays[0].shape[-1] if arrays else 1)
    rows = len(inputs["logit_rows"]) if "logit_rows" in inputs else tokens
    positions = np.asarray(inputs.get("position_ids", np.arange(tokens)[None]))[0].astype(np.int32)
    live: dict[int, Array] = {}
    for index, value in enumerate(lowered.values):
        if value.kind == "input":
            live[index] = inputs[value.name]
        elif value.kind == "const":
            live[index] = constant_array(lowered, constants, index, value)
    for node in lowered.nodes:
        declared = [lowered.values[i] for i in node.outputs]
        spec = op_spec(node.op)
        typed = [None if i < 0 else (lowered.values[i].dtype, lowered.values[i].shape) for i in node.inputs]
        spec.infer(typed, dict(node.attrs), [(v.dtype, v.shape) for v in declared])
        context = StepContext(
            sequences=np.zeros(len(positions), np.int32),
            positions=positions,
            out_shapes=tuple(tuple(dim_value(d, tokens=tokens, rows=rows) for d in v.shape) for v in declared),
            out_dtypes=tuple(v.dtype for v in declared),
        )
        with np.errstate(all="ignore"):
            made = spec.reference(context, dict(node.attrs), [None if i < 0 else live[i] for i in node.inputs])
        for index, value, array, shape in zip(node.outputs, declared, made, context.out_shapes, strict=True):
            assert array.shape == shape and array.dtype == value.dtype.numpy, (
                f"{node.name} ({node.op}): {array.dtype}{array.shape}, {value}"
            )
            live[index] = array
            if tap is not None:
                tap(value.name, array)
    return [live[i] for i in lowered.outputs]


def constant_array(lowered: Lowered, constants: Constants, index: int, value: Value) -> Array:
    """A constant's content."""
    if value.fill is not None:
        shape = tuple(d for d in value.shape if isinstance(d, int))
        return np.full(shape, fill_number(value), value.dtype.numpy if value.dtype is not DType.bf16 else np.uint16)
    source = lowered.sources[index]
    if source.packed is not None:
        return packed_arrays(constants, source.packed)[source.role]
    assert source.expr is not None
    return dense_array(constants, source.expr, value.dtype)
