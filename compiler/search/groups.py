"""Layers that share a decision, found by what the passes really join.

A draft of the model with one format everywhere is lowered; every packed weight of it is one kernel's operand, and so of one format. Layers
that share a packed weight (query, key and value; gate and up; a layer's experts), and weights that share a layer (a tied embedding and
head), are one group. So a new fusion rule, or a user's own pass, makes groups without a word said here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mixplan.compiler.constants import Parameter, leaves
from mixplan.compiler.decisions import layer_name
from mixplan.compiler.draft import Draft
from mixplan.compiler.lowering.operands import PackedWeight
from mixplan.runtime.formats import WeightFormat
from mixplan.runtime.packing import packed_layout

__all__ = ["LayerGroup", "WeightShape", "find_groups"]


@dataclass(frozen=True)
class WeightShape:
    """One packed weight: `copies` matrices [rows, columns]; 2 for gate and up, the number of experts for experts."""

    rows: int
    columns: int
    copies: int

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return self.rows * self.columns * self.copies

    def bits(self, fmt: WeightFormat) -> int:
        """Bits with scales and zero points, padding not counted: as the plan counts them."""
        return fmt.total_bits(self.rows, self.columns) * self.copies

    def nbytes(self, fmt: WeightFormat) -> int:
        """Bytes as stored, padding counted in."""
        total = 0
        for dtype, shape in packed_layout(fmt, self.rows, self.columns, self.copies).values():
            size = dtype.itemsize
            for length in shape:
                size *= length
            total += size
        return total


@dataclass(frozen=True)
class LayerGroup:
    """Layers of one decision. `rows` output rows of `columns` inputs, all layers together; `tensors` are the checkpoint's names of the
    weights. nodes: indices of the draft's nodes that read them; ops: what these are; weights: the packed weights."""

    name: str
    layers: tuple[str, ...]
    tensors: tuple[str, ...]
    rows: int
    columns: int
    parameters: int
    weights: tuple[WeightShape, ...]
    nodes: tuple[int, ...]
    ops: tuple[str, ...]

    @property
    def takes_int8(self) -> bool:
        """Whether a product of the group can round its input to int8; experts cannot, tables have no product."""
        return any(op.startswith(("linear", "gated_linear")) for op in self.ops)

    def bits(self, fmt: WeightFormat) -> int:
        """Bits in a format."""
        return sum(weight.bits(fmt) for weight in self.weights)

    def nbytes(self, fmt: WeightFormat) -> int:
        """Bytes in a format."""
        return sum(weight.nbytes(fmt) for weight in self.weights)


def find_groups(draft: Draft) -> tuple[LayerGroup, ...]:
    """The groups of a model, in order of first appearance. `draft` has one quantized scheme everywhere."""
    readers = _readers(draft)
    owners = _owners(draft.context.decisions)
    packed: dict[str, PackedWeight] = {}
    nodes: dict[str, list[int]] = {}
    for index, source in draft.lowered.sources.items():
        weight = source.packed
        if weight is None or not any(isinstance(leaf, Parameter) for leaf in leaves(weight.pieces)):
            continue
        packed.setdefault(weight.key, weight)
        nodes.setdefault(weight.key, []).extend(readers.get(index, ()))
    members = _joined((weight.key, [owners.get(name, name) for name in _layers(weight)]) for weight in packed.values())
    return tuple(_group(layers, [packed[key] for key in keys], [n for key in keys for n in nodes[key]], draft) for keys, layers in members)


def _readers(draft: Draft) -> Mapping[int, list[int]]:
    readers: dict[int, list[int]] = {}
    for number, node in enumerate(draft.plan.nodes):
        for index in node.inputs:
            readers.setdefault(index, []).append(number)
    return readers


def _owners(decisions: Iterable[str]) -> dict[str, str]:
    """The decided layer that a module belongs to: layers computed from several tensors have one name for all."""
    return {part: name for name in decisions for part in name.split(" + ")}


def _layers(weight: PackedWeight) -> list[str]:
    return list(dict.fromkeys(layer_name(leaf.name) for leaf in leaves(weight.pieces) if isinstance(leaf, Parameter)))


def _joined(weights: Iterable[tuple[str, Sequence[str]]]) -> list[tuple[list[str], list[str]]]:
    """Packed weights (keys) and layers that hang together."""
    groups: list[tuple[list[str], list[str]]] = []
    for key, layers in weights:
        touching = [group for group in groups if set(group[1]) & set(layers)]
        into = touching[0] if touching else ([], [])
        if not touching:
            groups.append(into)
        for other in touching[1:]:
            into[0].extend(other[0])
            into[1].extend(other[1])
            groups.remove(other)
        into[0].append(key)
        into[1].extend(layers)
    return [(keys, list(dict.fromkeys(layers))) for keys, layers in groups]


def _group(layers: Sequence[str], weights: Sequence[PackedWeight], nodes: Sequence[int], draft: Draft) -> LayerGroup:
    shapes = tuple(WeightShape(weight.rows, weight.columns, weight.copies) for weight in weights)
    used = tuple(sorted(set(nodes)))
    columns = max(shape.columns for shape in shapes)
    parameters = sum(shape.parameters for shape in shapes)
    tensors = dict.fromkeys(leaf.name for weight in weights for leaf in leaves(weight.pieces) if isinstance(leaf, Parameter))
    return LayerGroup(
        name=" + ".join(layers),
        layers=tuple(layers),
        tensors=tuple(tensors),
        rows=parameters // columns,
        columns=columns,
        parameters=parameters,
        weights=shapes,
        nodes=used,
        ops=tuple(dict.fromkeys(draft.plan.nodes[node].op for node in used)),
    )
