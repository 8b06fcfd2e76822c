"""Walks a region's work in order: pointwise chains as one op, everything else by its emitter."""

from __future__ import annotations

from mixplan.runtime.plan import Plan, Region
from mixplan.targets.chains import Chain, ChainRules, find_chains, readers
from mixplan.targets.cpu.codegen.builder import Builder
from mixplan.targets.cpu.codegen.ops.elementwise import emit_chain
from mixplan.targets.cpu.codegen.ops.table import EMITTERS, POINTWISE, VIEWS
from mixplan.targets.cpu.codegen.pointwise import emit_copy
from mixplan.targets.cpu.codegen.ref import Buffer, Ref, contiguous_strides
from mixplan.targets.cpu.codegen.rotations import find_rotations

__all__ = ["build_region"]


def build_region(plan: Plan, region: Region) -> Builder:
    """Generate all functions and ops of `region`. The caller has checked that every node is supported."""
    builder = Builder(plan, region)
    builder.rotations = find_rotations(plan, region, readers(plan, region))
    inside = frozenset(rope for pair in builder.rotations.values() for rope in pair)

    def reads(plan: Plan, index: int) -> set[int]:
        sources = (index, *builder.rotations.get(index, ()))
        return {value for source in sources for value in plan.nodes[source].inputs if value >= 0}

    for work in find_chains(plan, region, ChainRules(lambda node: node.op in POINTWISE, VIEWS, reads, inside)):
        if isinstance(work, Chain):
            emit_chain(builder, work)
        for index in work.views if isinstance(work, Chain) else (work,):
            node = plan.nodes[index]
            EMITTERS[node.op](builder, node, index)
    _finish_outputs(builder)
    return builder


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
