"""Walks a region's nodes in order: views first, pointwise chains as one op, everything else by its emitter."""

from __future__ import annotations

from dataclasses import dataclass, field

from mixplan.runtime.plan import Node, Plan, Region
from mixplan.targets.cpu.codegen.builder import Builder
from mixplan.targets.cpu.codegen.ops.elementwise import emit_chain
from mixplan.targets.cpu.codegen.ops.table import EMITTERS, POINTWISE, VIEWS
from mixplan.targets.cpu.codegen.pointwise import emit_copy
from mixplan.targets.cpu.codegen.ref import Buffer, Ref, contiguous_strides
from mixplan.targets.cpu.codegen.rotations import find_rotations

__all__ = ["build_region"]

# Longer chains gain nothing and make one function slow to compile.
_LONGEST_CHAIN = 64


@dataclass
class _Chain:
    """Pointwise nodes that wait to become one loop nest, and the views of their results that wait for them."""

    nodes: list[int] = field(default_factory=list)
    values: set[int] = field(default_factory=set)
    views: list[int] = field(default_factory=list)
    viewed: set[int] = field(default_factory=set)
    shape: object = None


def build_region(plan: Plan, region: Region) -> Builder:
    """Generate all functions and ops of `region`. The caller has checked that every node is supported."""
    builder = Builder(plan, region)
    users = _users(plan, region)
    builder.rotations = find_rotations(plan, region, users)
    inside = {rope for pair in builder.rotations.values() for rope in pair}
    chain = _Chain()
    for index in range(region.start, region.stop):
        node = plan.nodes[index]
        if index in inside:
            continue
        sources = [node, *(plan.nodes[rope] for rope in builder.rotations.get(index, ()))]
        reads = {value for source in sources for value in source.inputs if value >= 0}
        if node.op in VIEWS and reads & (chain.values | chain.viewed):
            chain.views.append(index)
            chain.viewed.update(node.outputs)
            continue
        if node.op in POINTWISE:
            shape = plan.values[node.outputs[0]].shape
            if chain.nodes and (shape != chain.shape or reads & chain.viewed or len(chain.nodes) >= _LONGEST_CHAIN):
                # A node of another shape that does not need the chain could be emitted at once; as a chain of its own it may still grow.
                _flush(builder, chain, users)
                chain = _Chain()
            chain.nodes.append(index)
            chain.values.update(node.outputs)
            chain.shape = shape
            continue
        if chain.nodes and reads & (chain.values | chain.viewed):
            _flush(builder, chain, users)
            chain = _Chain()
        EMITTERS[node.op](builder, node, index)
    _flush(builder, chain, users)
    _finish_outputs(builder)
    return builder


def _users(plan: Plan, region: Region) -> dict[int, set[int]]:
    """For each value made in the region, the nodes that read it; a region output is also read by node -1."""
    users: dict[int, set[int]] = {value: {-1} for value in region.outputs}
    for index in range(region.start, region.stop):
        for value in plan.nodes[index].inputs:
            users.setdefault(value, set()).add(index)
    return users


def _flush(builder: Builder, chain: _Chain, users: dict[int, set[int]]) -> None:
    if not chain.nodes:
        return
    inside = set(chain.nodes)
    live = frozenset(value for value in chain.values if users.get(value, set()) - inside)
    # A chain that nobody reads still needs a place for its last result.
    last: Node = builder.plan.nodes[chain.nodes[-1]]
    emit_chain(builder, chain.nodes, live or frozenset(last.outputs))
    for index in chain.views:
        node = builder.plan.nodes[index]
        EMITTERS[node.op](builder, node, index)


def _finish_outputs(builder: Builder) -> None:
    """Copy the region outputs that are views, or that another output is stored in, to their own memory."""
    pairs = []
    for k, value in enumerate(builder.region.outputs):
        ref, shape = builder.ref(value), builder.shape(value)
        if ref.buffer.kind == "output" and ref.buffer.index == k and ref.contiguous and not ref.offset.terms:
            continue
        target = Ref(Buffer("output", k), ref.dtype, shape, contiguous_strides(shape))
        pairs.append((ref, target))
    if pairs:
        emit_copy(builder, pairs, builder.region.stop - 1)
