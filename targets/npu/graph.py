"""Builds a region's ONNX graph: names, constants, shapes, and the nodes that ops are lowered to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from mixplan.runtime.devices.npu_names import EXTENTS, dim_name, is_past
from mixplan.runtime.devices.npu_tensors import Placed
from mixplan.runtime.devices.npu_weights import OnnxTensor
from mixplan.runtime.dtypes import DType
from mixplan.runtime.plan import Dim, Plan, Shape, Sym, Value
from mixplan.targets.npu.providers.base import Activation, ProviderRules

__all__ = ["ELEMENT_TYPES", "Graph", "Range"]

ELEMENT_TYPES: dict[str, int] = {
    "f32": TensorProto.FLOAT,
    "f16": TensorProto.FLOAT16,
    "bf16": TensorProto.BFLOAT16,
    "f64": TensorProto.DOUBLE,
    "i64": TensorProto.INT64,
    "u64": TensorProto.UINT64,
    "i32": TensorProto.INT32,
    "i16": TensorProto.INT16,
    "u16": TensorProto.UINT16,
    "i8": TensorProto.INT8,
    "u8": TensorProto.UINT8,
    "i4": TensorProto.INT4,
    "u4": TensorProto.UINT4,
    "f8": TensorProto.FLOAT8E4M3FN,
    "bool": TensorProto.BOOL,
}


@dataclass(frozen=True)
class Range:
    """The smallest and the largest number that a tensor was seen to hold."""

    low: float
    high: float


@dataclass
class Graph:
    """One region on its way to ONNX.

    Lowerings ask it for the names of a node's inputs, add nodes with `op`, and enter the names of what they made with `bind`.
    ranges: of the values whose activations are quantized, by value name; activation: to which type. kept: what the region gives out.
    static: round activations with scales known beforehand, not row by row as the plan's ops do. gives_stored: new keys and values go out as
    the cache would hold them, for a caller who keeps them as they are; else before they are rounded, for a device that does.
    """

    plan: Plan
    rules: ProviderRules
    tensors: Mapping[str, Placed]
    ranges: Mapping[str, Range]
    activation: Activation
    kept: frozenset[int] = frozenset()
    static: bool = True
    gives_stored: bool = False
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: dict[str, TensorProto] = field(default_factory=dict)
    inputs: dict[str, onnx.ValueInfoProto] = field(default_factory=dict)
    outputs: dict[str, onnx.ValueInfoProto] = field(default_factory=dict)
    external: dict[str, OnnxTensor] = field(default_factory=dict)
    # Codes of activations -> the name of what they stand for: those rounded here with static scales, and those that came with their own.
    rounded: dict[int, str] = field(default_factory=dict)
    widened: dict[int, str] = field(default_factory=dict)
    _bound: dict[int, str] = field(default_factory=dict)
    _constants: dict[tuple[str, tuple[int, ...], bytes], str] = field(default_factory=dict)
    _scope: str = ""
    _count: int = 0

    def begin(self, scope: str) -> None:
        """The plan's node that is being lowered: names of ONNX nodes begin with it."""
        self._scope, self._count = scope, 0

    def value(self, index: int) -> str:
        """The name of a value: of one that was bound, or a constant."""
        if index in self._bound:
            return self._bound[index]
        value = self.plan.values[index]
        if value.kind != "const":
            raise KeyError(value.name)
        name = self.fill(value) if value.fill is not None else self.tensor(self.tensors[value.name].tensor)
        self._bound[index] = name
        return name

    def bind(self, index: int, name: str) -> None:
        """`name` is the value with this index."""
        self._bound[index] = name

    def known(self, index: int) -> bool:
        """Whether a value was bound."""
        return index in self._bound

    def shape(self, index: int) -> Shape:
        """A value's dims."""
        return self.plan.values[index].shape

    def dtype(self, index: int) -> DType:
        """A value's dtype."""
        return self.plan.values[index].dtype

    def op(self, kind: str, *inputs: str, **attrs: Any) -> str:
        """Add a node with one output; gives its name."""
        return self.ops(kind, 1, *inputs, **attrs)[0]

    def ops(self, kind: str, outputs: int, *inputs: str, **attrs: Any) -> list[str]:
        """Add a node with some outputs; gives their names."""
        name = f"{self._scope}/{kind}_{self._count}"
        self._count += 1
        made = [name if outputs == 1 else f"{name}:{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), made, name=name, **attrs))
        return made

    def cast(self, name: str, kind: str) -> str:
        """To another element type."""
        return self.op("Cast", name, to=ELEMENT_TYPES[kind])

    def array(self, array: NDArray[Any]) -> str:
        """A small constant, held in the model."""
        array = np.ascontiguousarray(array) if array.ndim else array
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            name = self._constants[key] = f"constant_{len(self._constants)}"
            self.initializers[name] = numpy_helper.from_array(array, name)
        return self._constants[key]

    def number(self, number: float, kind: str = "f32") -> str:
        """A scalar."""
        return self.array(np.asarray(number, DType(kind).numpy))

    def integers(self, numbers: Sequence[int]) -> str:
        """A list of i64."""
        return self.array(np.asarray(list(numbers), np.int64))

    def tensor(self, tensor: OnnxTensor) -> str:
        """A tensor of the region's external data."""
        self.external[tensor.name] = tensor
        return tensor.name

    def fill(self, value: Value) -> str:
        """A constant that is one number throughout."""
        shape = [int(dim) for dim in value.shape if isinstance(dim, int)]
        assert value.fill is not None
        number = np.asarray([float(value.fill)]).astype(value.dtype.numpy)
        if np.prod(shape, dtype=np.int64) <= 1024:
            return self.array(np.full(shape, number[0]))
        return self.op("ConstantOfShape", self.integers(shape), value=numpy_helper.from_array(number))

    def extent(self, dim: Dim) -> str:
        """A dim as an i64 tensor [1], computed in the graph where it is known at the step only."""
        if isinstance(dim, int):
            return self.integers([dim])
        name, axis = self._measured(dim)
        size = self.op("Gather", self.op("Shape", name), self.integers([axis]))
        if dim.mul != 1:
            size = self.op("Mul", size, self.integers([dim.mul]))
        return self.op("Add", size, self.integers([dim.add])) if dim.add else size

    def extents(self, shape: Shape) -> str:
        """Dims as an i64 tensor [rank]."""
        if all(isinstance(dim, int) for dim in shape):
            return self.integers([int(dim) for dim in shape if isinstance(dim, int)])
        return self.op("Concat", *(self.extent(dim) for dim in shape), axis=0)

    def reshape(self, name: str, shape: Shape) -> str:
        """The same elements in another shape."""
        if sum(not isinstance(dim, int) for dim in shape) <= 1 and 0 not in shape:
            return self.op("Reshape", name, self.integers([dim if isinstance(dim, int) else -1 for dim in shape]))
        return self.op("Reshape", name, self.extents(shape))

    def reduce(self, kind: str, name: str, axes: Sequence[int], *, keepdims: bool) -> str:
        """A Reduce node; until opset 18 all of them but ReduceSum have their axes as an attribute."""
        if self.rules.opset < 18 and kind != "ReduceSum":
            return self.op(kind, name, axes=list(axes), keepdims=int(keepdims))
        return self.op(kind, name, self.integers(axes), keepdims=int(keepdims))

    def part(self, name: str, axis: int, start: int, stop: int, step: int = 1) -> str:
        """Elements [start, stop) along an axis; a stop of -1 is the end."""
        end = np.iinfo(np.int64).max if stop == -1 else stop
        return self.op("Slice", name, *(self.integers([number]) for number in (start, end, axis, step)))

    def add_input(self, name: str, kind: str, dims: Sequence[int | str]) -> str:
        """An input of the model; one that is there already is not added again."""
        self.inputs.setdefault(name, helper.make_tensor_value_info(name, ELEMENT_TYPES[kind], list(dims)))
        return name

    def add_output(self, name: str, source: str, kind: str, dims: Sequence[int | str]) -> None:
        """An output of the model, made of `source`."""
        self.nodes.append(helper.make_node("Identity", [source], [name], name=f"{name}/Identity"))
        self.outputs[name] = helper.make_tensor_value_info(name, ELEMENT_TYPES[kind], list(dims))

    def dims(self, shape: Shape) -> list[int | str]:
        """A shape as an input or output of the model has it."""
        return [dim_name(dim) for dim in shape]

    def _measured(self, dim: Sym) -> tuple[str, int]:
        """An input and an axis that has T (or R) elements; one is added where the region reads none."""
        for name, info in self.inputs.items():
            if is_past(name):
                continue
            for axis, found in enumerate(info.type.tensor_type.shape.dim):
                if found.dim_param == dim.sym:
                    return name, axis
        name = next(name for name, sym in EXTENTS.items() if sym == dim.sym)
        return self.add_input(name, "i64", [dim.sym]), 0
