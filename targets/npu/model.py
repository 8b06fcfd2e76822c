"""A region as an ONNX model, checked."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import TensorProto, helper

from mixplan.runtime.devices.npu_names import value_names
from mixplan.runtime.devices.npu_tensors import Placed, data_file, region_tensors
from mixplan.runtime.errors import InternalError, UnsupportedError
from mixplan.runtime.plan import Dim, Plan, Region, Sym
from mixplan.targets.base import Port
from mixplan.targets.npu.graph import ELEMENT_TYPES, Graph, Range
from mixplan.targets.npu.lower.table import LOWERINGS, unsupported_reason
from mixplan.targets.npu.providers.base import Activation, ProviderRules

__all__ = ["IR_VERSIONS", "check_model", "model_ports", "region_model"]

IR_VERSIONS = {17: 8, 21: 10}
"""The version of the file format that came with each opset: older runtimes refuse newer ones."""


def region_model(
    plan: Plan,
    region: Region,
    rules: ProviderRules,
    *,
    ranges: Mapping[str, Range],
    activation: Activation,
    static: bool = True,
    gives_stored: bool = False,
) -> onnx.ModelProto:
    """The region's nodes as an ONNX model whose constants are external data, laid out as `region_tensors` says.

    static: round activations with scales made of `ranges`; else row by row, as the plan's own ops do. gives_stored: see Graph.

    Raises UnsupportedError naming a node that the provider does not take, OptionError where an activation has no range.
    """
    names, placed = value_names(plan, region), region_tensors(plan, region, rules.weights)
    tensors = {one.tensor.name: one for one in placed}
    graph = Graph(plan, rules, tensors, ranges, activation, frozenset(region.outputs), static, gives_stored)
    for index in region.inputs:
        value = plan.values[index]
        graph.bind(index, graph.add_input(names[index], value.dtype.value, graph.dims(value.shape)))
    for node in plan.nodes[region.start : region.stop]:
        if reason := unsupported_reason(node, plan.values, rules):
            raise UnsupportedError(f"Node {node.name!r} ({node.op}) cannot be compiled for the NPU: {reason}.")
        graph.begin(node.name)
        try:
            LOWERINGS[node.op].emit(graph, node)
        except KeyError as error:
            raise UnsupportedError(f"Node {node.name!r} ({node.op}) cannot be compiled for the NPU: {error.args[0]}.") from error
    for index in region.outputs:
        value = plan.values[index]
        graph.add_output(names[index], graph.value(index), value.dtype.value, graph.dims(value.shape))
    made = helper.make_graph(
        graph.nodes,
        region.name,
        list(graph.inputs.values()),
        list(graph.outputs.values()),
        [*graph.initializers.values(), *(_external(one, data_file(placed)) for one in placed if one.tensor.name in graph.external)],
    )
    domains = {"": rules.opset, **{node.domain: 1 for node in graph.nodes if node.domain}}
    opsets = [helper.make_opsetid(domain, version) for domain, version in domains.items()]
    model = helper.make_model(made, opset_imports=opsets, ir_version=IR_VERSIONS[rules.opset], producer_name="mixplan")
    check_model(model)
    return model


def model_ports(model: onnx.ModelProto, plan: Plan, region: Region) -> dict[int, Port]:
    """The values at the region's borders as the model has them."""
    kinds = {number: kind for kind, number in ELEMENT_TYPES.items()}
    found = {one.name: one for one in (*model.graph.input, *model.graph.output)}
    ports: dict[int, Port] = {}
    for index, name in value_names(plan, region).items():
        tensor = found[name].type.tensor_type
        ports[index] = Port(kinds[tensor.elem_type], tuple(_dim(dim) for dim in tensor.shape.dim))
    return ports


def _dim(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    if not dim.dim_param:
        return int(dim.dim_value)
    return Sym("T") if dim.dim_param == "T" else Sym("R") if dim.dim_param == "R" else -1


def check_model(model: onnx.ModelProto) -> None:
    """onnx's checker with shape inference. External data, which is not there yet, counts as inputs. InternalError where it objects."""
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    outside = [one for one in bare.graph.initializer if one.data_location == TensorProto.EXTERNAL]
    inside = [one for one in bare.graph.initializer if one.data_location != TensorProto.EXTERNAL]
    del bare.graph.initializer[:]
    bare.graph.initializer.extend(inside)
    bare.graph.input.extend(helper.make_tensor_value_info(one.name, one.data_type, list(one.dims)) for one in outside)
    try:
        onnx.checker.check_model(bare, full_check=True)
    except Exception as error:  # the checker's and shape inference's errors share no base class
        raise InternalError(f"The ONNX model made of region {model.graph.name!r} is not valid: {error}") from error


def _external(one: Placed, file: str) -> TensorProto:
    tensor = TensorProto(name=one.tensor.name, data_type=ELEMENT_TYPES[one.tensor.kind], dims=one.tensor.shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in (("location", file), ("offset", str(one.offset)), ("length", str(one.tensor.nbytes))):
        tensor.external_data.add(key=key, value=text)
    return tensor
