"""From an ExportedProgram to a plain GraphModule whose parameters are get_attr nodes under the model's own names."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from mixplan.compiler.export.editing import insert
from mixplan.compiler.export.wrapper import PREFIX

__all__ = ["unlift"]


def unlift(program: ExportedProgram, tied: dict[str, str], constants: dict[str, Tensor]) -> fx.GraphModule:
    """Rebuild the graph with get_attr nodes; asserts and dead nodes are dropped.

    `tied` maps a parameter's name to the name that stands for it in the checkpoint. `constants` are the real buffers by name. Parameters
    become meta tensors in the result; buffers and lifted constants become real tensors.
    """
    signature, source = program.graph_signature, program.graph
    kinds = {spec.arg.name: spec for spec in signature.input_specs}
    graph = fx.Graph()
    root: dict[str, Any] = {}
    attributes: dict[str, fx.Node] = {}
    mapping: dict[fx.Node, fx.Node] = {}

    def attribute(name: str, value: Tensor, node: fx.Node) -> fx.Node:
        if name not in attributes:
            root[name] = value
            attributes[name] = graph.get_attr(name)
            attributes[name].meta = dict(node.meta)
        return attributes[name]

    for node in source.nodes:
        if node.op == "placeholder":
            spec = kinds[node.name]
            if spec.kind is InputKind.USER_INPUT:
                mapping[node] = graph.node_copy(node)
                continue
            name = (spec.target or node.name).removeprefix(PREFIX + ".")
            if spec.kind is InputKind.PARAMETER:
                value = node.meta["val"]
                mapping[node] = attribute(tied.get(name, name), torch.empty(value.shape, dtype=value.dtype, device="meta"), node)
            else:
                value = constants.get(name)
                if value is None:
                    value = program.constants[spec.target]
                mapping[node] = attribute(name, value.detach().contiguous(), node)
        elif node.op == "output":
            logits = node.args[0][-1] if isinstance(node.args[0], (tuple, list)) else node.args[0]
            mapping[node] = graph.output(mapping[logits])
            mapping[node].meta = dict(node.meta)
        else:
            mapping[node] = graph.node_copy(node, lambda n: mapping[n])
    _drop_checks(graph)
    module = fx.GraphModule(root, graph, class_name="Captured")
    module.graph.eliminate_dead_code()
    module.graph.lint()
    module.recompile()
    return module


def _drop_checks(graph: fx.Graph) -> None:
    """Erase nodes that only check shapes and dtypes (the plan checks its own), and dropout at inference, which is not dead code to fx."""
    for node in reversed(list(graph.nodes)):
        if node.target is torch.ops.aten.dropout.default and not (node.args[2] and node.args[1]):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        elif node.target is torch.ops.aten.numpy_T.default:
            node.replace_all_uses_with(insert(node, torch.ops.aten.permute.default, node.args[0], list(range(node.meta["val"].ndim))[::-1]))
            graph.erase_node(node)
        elif node.op == "call_function" and not node.users and "assert" in str(node.target):
            graph.erase_node(node)
