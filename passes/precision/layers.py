"""Layers: the checkpoint's modules that a graph's weight ops read, under the names that overrides use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import fx

from mixplan.passes.fx_ops import EMBEDDING, GROUPED_LINEAR, LINEAR
from mixplan.passes.patterns import dims
from mixplan.passes.rewriting import tensor_of

__all__ = ["Layer", "layer_name", "layers_of", "weight_of"]

_WEIGHT_ARGUMENT = {LINEAR: 1, EMBEDDING: 1, GROUPED_LINEAR: 2}


@dataclass(frozen=True)
class Layer:
    """One decision's subject: `rows` output rows of `columns` inputs each (experts' rows are counted together).

    `aliases` are names of tied parameters. `parameter` is false for a table that the module computes and the checkpoint does not hold.
    """

    name: str
    aliases: tuple[str, ...]
    rows: int
    columns: int
    nodes: tuple[fx.Node, ...]
    parameter: bool = True


def layer_name(parameter: str) -> str:
    """The module's name for its `weight`; a parameter of any other name is a layer of its own."""
    return parameter.removesuffix(".weight")


def weight_of(node: fx.Node) -> fx.Node:
    """The weight expression that a linear, embedding or grouped_linear node reads."""
    weight: fx.Node = node.args[_WEIGHT_ARGUMENT[node.target]]
    return weight


def layers_of(module: fx.GraphModule, tied: Mapping[str, str]) -> list[Layer]:
    """Every layer in graph order. Nodes that read the same parameters are one layer."""
    readers: dict[tuple[str, ...], list[fx.Node]] = {}
    for node in module.graph.nodes:
        if node.op == "call_function" and node.target in _WEIGHT_ARGUMENT:
            readers.setdefault(tuple(_tensors(weight_of(node))), []).append(node)
    others: dict[str, list[str]] = {}
    for name, kept in tied.items():
        others.setdefault(kept, []).append(name)
    layers = []
    for tensors, nodes in readers.items():
        parameters = [name for name in tensors if tensor_of(module, name).device.type == "meta"]
        named = parameters or list(tensors)
        aliases = tuple(layer_name(other) for name in named for other in others.get(name, ()))
        *rows, columns = (int(size) for size in dims(weight_of(nodes[0])))
        count = 1
        for size in rows:
            count *= size
        layers.append(Layer(" + ".join(map(layer_name, named)), aliases, count, columns, tuple(nodes), bool(parameters)))
    return layers


def _tensors(weight: fx.Node) -> list[str]:
    """Names of the tensors that an expression reads, in order of appearance."""
    found: dict[str, None] = {}
    pending = [weight]
    while pending:
        node = pending.pop(0)
        if node.op == "get_attr":
            found.setdefault(str(node.target))
        pending.extend(node.all_input_nodes)
    return list(found)
