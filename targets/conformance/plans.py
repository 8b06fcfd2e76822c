"""A plan of one case, on disk like any other: what a device is asked to load must not differ from what users have.

A plan's inputs are those of a decoder. So that a node can be given any array, its inputs are declared as outputs of another region, on the
reference device, which is never run: the tested region is called with arrays in their place.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from mixplan.runtime.ops import op_spec
from mixplan.runtime.plan import SCHEMA_VERSION, Model, Node, Plan, Provenance, Region, Tensor, Value
from mixplan.runtime.plan_io import write_manifest
from mixplan.targets.conformance.case import Case, Filled, Fixed, Given
from mixplan.targets.constants_file import write_constants

__all__ = ["MAX_TOKENS", "TESTED", "case_node", "case_plan", "write_case"]

MAX_TOKENS = 65
"""Tokens of a step, at most."""

TESTED = "tested"
"""The name of the region that is tested: the last one."""

_WEIGHTS = "weights.safetensors"


@dataclass
class _Graph:
    values: list[Value] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)

    def add(self, value: Value) -> int:
        self.values.append(value)
        return len(self.values) - 1


def case_plan(case: Case, device: str) -> Plan:
    """The plan, with the case's node as the last one, without files."""
    graph = _Graph()
    indices = []
    offset = 0
    for number, given in enumerate(case.inputs):
        if isinstance(given, Given):
            zero = False if given.dtype.value == "bool" else 0
            source = graph.add(Value(f"zero{number}", "const", given.dtype, (), fill=zero))
            made = graph.add(Value(f"x{number}", "node", given.dtype, given.shape))
            graph.nodes.append(Node("expand", (source,), (made,), name=f"make_x{number}"))
            indices.append(made)
        elif isinstance(given, Fixed):
            place = Tensor(_WEIGHTS, f"c{number}", offset, given.array.nbytes)
            offset += given.array.nbytes
            indices.append(graph.add(Value(f"c{number}", "const", given.dtype, given.array.shape, tensor=place)))
        elif isinstance(given, Filled):
            indices.append(graph.add(Value(f"c{number}", "const", given.dtype, given.shape, fill=given.number)))
        else:
            indices.append(-1)
    typed = [None if index < 0 else (graph.values[index].dtype, graph.values[index].shape) for index in indices]
    inferred = op_spec(case.op).infer(typed, dict(case.attrs), [case.declared] if case.declared else [])
    outputs = tuple(graph.add(Value(f"y{k}", "node", dtype, tuple(shape))) for k, (dtype, shape) in enumerate(inferred))
    made_before = len(graph.nodes)
    graph.nodes.append(Node(case.op, tuple(indices), outputs, dict(case.attrs), name=case.op))
    crossing = tuple(index for index in dict.fromkeys(indices) if index >= 0 and graph.values[index].kind == "node")
    regions = [Region(TESTED, device, made_before, made_before + 1, crossing, outputs)]
    if made_before:
        regions.insert(0, Region("given", "reference", 0, made_before, (), crossing))
    return Plan(
        schema_version=SCHEMA_VERSION,
        name=f"conformance-{case.op}",
        model=Model("conformance", 1, 256, 1),
        values=tuple(graph.values),
        nodes=tuple(graph.nodes),
        regions=tuple(regions),
        outputs=outputs,
        attention=(case.layer,) if case.layer is not None else (),
        max_step_tokens=MAX_TOKENS,
        decisions=(),
        effective_bits=32.0,
        provenance=Provenance("conformance", case.op, {}, {}, {}),
    )


def case_node(plan: Plan) -> Node:
    """The node that is tested."""
    return plan.nodes[-1]


def write_case(root: Path, case: Case, plan: Plan, tested: Region) -> None:
    """Write the plan's weights and manifest into `root`, where the files of the `tested` region already are."""
    fixed = {f"c{number}": given for number, given in enumerate(case.inputs) if isinstance(given, Fixed)}
    write_constants(root / _WEIGHTS, {name: (given.array, given.dtype) for name, given in fixed.items()})
    write_manifest(root, msgspec.structs.replace(plan, regions=(*plan.regions[:-1], tested)))
