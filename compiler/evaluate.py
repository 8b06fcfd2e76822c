"""A lowered graph run in memory by the ops' numpy references: what tests and pass authors compare with torch, without writing a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.export.graph_signature import InputKind

from mixplan.compiler.constants import Constants, Expr, Literal, Parameter
from mixplan.compiler.lowering import Lowered, lower
from mixplan.compiler.packed import dense_array, packed_arrays
from mixplan.runtime.dtypes import DType
from mixplan.runtime.ops import op_spec
from mixplan.runtime.ops.base import StepContext
from mixplan.runtime.plan import Value, dim_value
from mixplan.runtime.plan_json import fill_number

__all__ = ["constant_array", "evaluate", "lower_module"]

Array = NDArray[Any]


def evaluate(
    lowered: Lowered,
    constants: Constants,
    inputs: Mapping[str, Array],
    *,
    tokens: int | None = None,
    tap: Callable[[str, Array], None] | None = None,
) -> list[Array]:
    """The outputs for step inputs by name: for a decoder token_ids and position_ids [1, T], logit_rows [R]. One sequence, no KV cache.

    tokens: T, where the inputs are not a decoder's. `tap` sees each node's outputs by name.
    """
    count = inputs["token_ids"].shape[-1] if tokens is None else tokens
    rows = len(inputs["logit_rows"]) if "logit_rows" in inputs else count
    positions = np.asarray(inputs.get("position_ids", np.arange(count)[None]))[0].astype(np.int32)
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
            out_shapes=tuple(tuple(dim_value(d, tokens=count, rows=rows) for d in v.shape) for v in declared),
            out_dtypes=tuple(v.dtype for v in declared),
        )
        with np.errstate(all="ignore"):
            made = spec.reference(context, dict(node.attrs), [None if i < 0 else live[i] for i in node.inputs])
        for index, value, array, shape in zip(node.outputs, declared, made, context.out_shapes, strict=True):
            assert array.shape == shape and array.dtype == value.dtype.numpy, f"{node.name}: {array.dtype}{array.shape}, {value}"
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


class _InMemory:
    """A module's parameters as a weight source."""

    def __init__(self, state: Mapping[str, torch.Tensor]) -> None:
        self._state = state

    def names(self) -> list[str]:
        return list(self._state)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._state[name].shape)

    def dtype(self, name: str) -> str:
        return "F32"

    def read(self, name: str) -> NDArray[np.float32]:
        array: NDArray[np.float32] = self._state[name].detach().float().numpy()
        return array

    def read_rows(self, name: str, start: int, stop: int) -> NDArray[np.float32]:
        return self.read(name)[start:stop]

    def close(self) -> None:
        pass


def lower_module(
    module: nn.Module, args: tuple[torch.Tensor, ...], dynamic: tuple[int | None, ...]
) -> tuple[Lowered, Constants, tuple[str, ...]]:
    """Export any module and lower it as it stands: the plan, its constants, the names of its inputs.

    dynamic: for each argument the axis whose size is T, or None.
    """
    tokens = torch.export.Dim("T", min=3, max=1 << 20)
    shapes = tuple(None if axis is None else {axis: tokens} for axis in dynamic)
    with torch.no_grad():
        program = torch.export.export(module, args, dynamic_shapes=shapes if any(shapes) else None)
    bound: dict[str, Expr] = {}
    inputs = []
    for spec in program.graph_signature.input_specs:
        name, target = spec.arg.name, spec.target or ""
        if spec.kind is InputKind.USER_INPUT:
            inputs.append(name)
        elif spec.kind is InputKind.PARAMETER:
            bound[name] = Parameter(target, tuple(program.state_dict[target].shape))
        else:
            bound[name] = Literal(program.state_dict[target] if target in program.state_dict else program.constants[target], target)
    constants = Constants(_InMemory(dict(module.named_parameters())))
    return lower(program.graph_module, constants, bound), constants, tuple(inputs)
