"""Runs a few nodes of a plan as an ONNX model in onnxruntime, and by the ops' numpy references."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from mixplan.runtime.devices.npu_names import value_names
from mixplan.runtime.devices.npu_tensors import data_file, region_tensors, tensor_bytes
from mixplan.runtime.dtypes import DTYPE_OF_NUMPY
from mixplan.runtime.ops import StepContext, op_spec
from mixplan.runtime.plan import SCHEMA_VERSION, AttentionLayer, Model, Node, Plan, Provenance, Region, Sym, Value
from mixplan.targets.npu.graph import Range
from mixplan.targets.npu.model import region_model
from mixplan.targets.npu.providers.table import activation_type, provider_rules

TOKENS = 5


@dataclass
class Nodes:
    """A small plan: `input` and `const` give a value's index, `node` those of its outputs."""

    values: list[Value] = field(default_factory=list)
    arrays: dict[int, np.ndarray] = field(default_factory=dict)
    made: list[Node] = field(default_factory=list)
    attention: tuple[AttentionLayer, ...] = ()

    def _value(self, kind: Any, array: np.ndarray, shape: Sequence[Any]) -> int:
        index = len(self.values)
        self.values.append(Value(name=f"v{index}", kind=kind, dtype=DTYPE_OF_NUMPY[array.dtype], shape=tuple(shape)))
        return index

    def input(self, array: np.ndarray, *, tokens: int | None = 1) -> int:
        """tokens: the axis of the step's tokens."""
        index = self._value("input", array, [Sym("T") if axis == tokens else size for axis, size in enumerate(array.shape)])
        self.arrays[index] = array
        return index

    def const(self, array: np.ndarray | None) -> int:
        if array is None:
            return -1
        index = self._value("const", array, array.shape)
        self.arrays[index] = array
        return index

    def node(self, op: str, inputs: Sequence[int], shape: Sequence[Any] | None = None, dtype: str = "f32", **attrs: Any) -> list[int]:
        """shape, dtype: of the output, where the inputs leave it open."""
        typed = [None if i < 0 else (self.values[i].dtype, self.values[i].shape) for i in inputs]
        declared = [] if shape is None else [(self.values[0].dtype.__class__(dtype), tuple(shape))]
        start = len(self.values)
        for i, (kind, dims) in enumerate(op_spec(op).infer(typed, attrs, declared)):
            self.values.append(Value(name=f"v{start + i}", kind="node", dtype=kind, shape=dims))
        outputs = list(range(start, len(self.values)))
        self.made.append(Node(op=op, inputs=tuple(inputs), outputs=tuple(outputs), attrs=attrs, name=f"{op}_{start}"))
        return outputs

    def plan(self, outputs: Sequence[int]) -> tuple[Plan, Region]:
        inputs = tuple(i for i, value in enumerate(self.values) if value.kind == "input")
        region = Region(name="r", device="npu", start=0, stop=len(self.made), inputs=inputs, outputs=tuple(outputs))
        plan = Plan(
            schema_version=SCHEMA_VERSION,
            name="p",
            model=Model(architecture="a", vocab_size=1, context_length=1, parameters=1),
            values=tuple(self.values),
            nodes=tuple(self.made),
            regions=(region,),
            outputs=(),
            attention=self.attention,
            max_step_tokens=TOKENS,
            decisions=(),
            effective_bits=0.0,
            provenance=Provenance(source_format="", source_name="", source_files={}, options={}, versions={}),
        )
        return plan, region


def reference(nodes: Nodes, outputs: Sequence[int]) -> list[np.ndarray]:
    live = dict(nodes.arrays)
    for node in nodes.made:
        shapes = tuple(tuple(TOKENS if isinstance(d, Sym) else d for d in nodes.values[i].shape) for i in node.outputs)
        context = StepContext(
            np.zeros(TOKENS, np.int32), np.arange(TOKENS, dtype=np.int32), None, shapes, tuple(nodes.values[i].dtype for i in node.outputs)
        )
        made = op_spec(node.op).reference(context, node.attrs, [None if i < 0 else live[i] for i in node.inputs])
        live.update(zip(node.outputs, made, strict=True))
    return [live[i] for i in outputs]


def run_onnx(
    nodes: Nodes,
    outputs: Sequence[int],
    provider: str = "cpu",
    activation: str = "",
    ranges: Mapping[str, tuple[float, float]] | None = None,
    feeds: Mapping[str, np.ndarray] | None = None,
    dims: Mapping[str, int] | None = None,
    also: Sequence[str] = (),
) -> list[np.ndarray]:
    """feeds, also: inputs and outputs of the model that are no values of the plan; dims: sizes of more of its dims."""
    import onnxruntime as ort

    plan, region = nodes.plan(outputs)
    rules = provider_rules(provider)
    model = region_model(
        plan, region, rules, ranges={k: Range(*v) for k, v in (ranges or {}).items()}, activation=activation_type(rules, activation)
    )
    placed = region_tensors(plan, region, rules.weights)
    data = np.zeros(max((one.offset + one.tensor.nbytes for one in placed), default=0), np.uint8)
    for one in placed:
        data[one.offset : one.offset + one.tensor.nbytes] = np.frombuffer(tensor_bytes(one.tensor, nodes.arrays.__getitem__), np.uint8)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    for name, size in {"T": TOKENS, **(dims or {})}.items():
        options.add_free_dimension_override_by_name(name, size)
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    if data.size:
        options.add_external_initializers_from_files_in_memory([data_file(placed)], [data], [data.nbytes])
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = value_names(plan, region)
    given = {**{names[i]: nodes.arrays[i] for i in region.inputs}, **(feeds or {})}
    return list(session.run([*(names[i] for i in outputs), *also], given))


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


@pytest.fixture
def compare() -> Callable[..., None]:
    """compare(nodes, outputs, rtol, atol): the ONNX model's results against the references'."""

    def check(nodes: Nodes, outputs: Sequence[int], rtol: float = 1e-5, atol: float = 2e-5, **options: Any) -> None:
        for got, wanted in zip(run_onnx(nodes, outputs, **options), reference(nodes, outputs), strict=True):
            assert got.dtype == wanted.dtype
            np.testing.assert_allclose(got, wanted, rtol, atol)

    return check


@pytest.fixture
def run() -> Callable[..., list[np.ndarray]]:
    return run_onnx
