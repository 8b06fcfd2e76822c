"""A plan before its bytes: the graph through the passes, lowered, placed and laid out, and the writing of it.

A search makes many drafts of one capture, so each takes a copy of the captured graph; parameters and buffers are shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec
from torch import fx

from mixplan.compiler.attention import attention_layers, with_scores
from mixplan.compiler.calibration.ranges import activation_ranges
from mixplan.compiler.clock import Clock
from mixplan.compiler.constants import Constants
from mixplan.compiler.decisions import Bits, make_decisions
from mixplan.compiler.emit import write_weights
from mixplan.compiler.frontends import Captured
from mixplan.compiler.kernels import BuiltRegion, build_regions, write_regions
from mixplan.compiler.layout import Layout, make_layout
from mixplan.compiler.lowering import Lowered, lower
from mixplan.compiler.options import Options
from mixplan.compiler.output import reporting_disk_errors
from mixplan.compiler.partition import Partition, partition
from mixplan.compiler.placing.boundaries import check_boundaries
from mixplan.compiler.placing.partition import partition_mixed
from mixplan.compiler.provenance import provenance
from mixplan.compiler.tuning import collector_paused
from mixplan.compiler.units import Units
from mixplan.passes.base import PassContext
from mixplan.passes.manager import PipelineReport
from mixplan.runtime.errors import InternalError, PlanError
from mixplan.runtime.plan import SCHEMA_VERSION, AttentionLayer, FileEntry, Plan, Provenance, Value
from mixplan.runtime.plan_check import check_plan

__all__ = ["Draft", "Written", "copy_graph", "make_draft", "write_draft"]


@dataclass(frozen=True)
class Draft:
    """The plan without its files. `values` have their places in the files of `layout`."""

    plan: Plan
    values: tuple[Value, ...]
    lowered: Lowered
    layout: Layout
    parts: Partition
    passed: PipelineReport
    context: PassContext
    bits: Bits


@dataclass(frozen=True)
class Written:
    """A draft whose weights, kernels and other files are on disk, but for the manifest. known: digests of what was hashed on the way."""

    plan: Plan
    built: tuple[BuiltRegion, ...]
    known: dict[str, FileEntry]


def copy_graph(graph: fx.GraphModule) -> fx.GraphModule:
    """A graph that passes may change, over the same parameters and buffers."""
    copied = fx.Graph()
    copied.set_codegen(graph.graph._codegen)
    output = copied.graph_copy(graph.graph, {}, return_output_node=True)
    assert isinstance(output, tuple)
    copied.output(output[0]).meta = dict(output[1].meta)
    return fx.GraphModule(graph, copied)


def make_draft(captured: Captured, constants: Constants, options: Options, clock: Clock) -> Draft:
    """Passes, lowering, placement, layout. Changes `captured.graph`: give a copy where it is needed again (see `copy_graph`)."""
    tied = dict(captured.tied)
    context = PassContext(options=options.pass_options, tied=tied)
    with collector_paused():
        passed: PipelineReport = clock.run("passes", lambda: options.manager.run(captured.graph, context, dump=options.dump))
        lowered: Lowered = clock.run("lower", lambda: lower(passed.graph, constants))
    kept = attention_layers(lowered, options.attention)
    lowered = with_scores(lowered, kept, options.attention)
    parts = _partition(captured, lowered, kept, options)
    layout = make_layout(lowered.values, lowered.sources, options.shard_bytes)
    decisions, bits = make_decisions(lowered, context.decisions, tied, options.scheme)
    values = [msgspec.structs.replace(v, tensor=layout.tensors[i]) if i in layout.tensors else v for i, v in enumerate(lowered.values)]
    plan = Plan(
        schema_version=SCHEMA_VERSION,
        name=f"{captured.source.name}-{options.label}",
        model=captured.model,
        values=tuple(values),
        nodes=tuple(parts.nodes),
        regions=tuple(parts.regions),
        outputs=lowered.outputs,
        attention=kept,
        max_step_tokens=options.max_step_tokens,
        decisions=decisions,
        effective_bits=bits.achieved,
        provenance=provenance(captured, {**options.texts, **parts.facts}, options.seed),
        passes=dict(passed.matches),
        rejections=(*(str(rejection) for rejection in context.rejections), *parts.notes),
    )
    _check(plan)
    return Draft(plan, tuple(values), lowered, layout, parts, passed, context, bits)


def _partition(captured: Captured, lowered: Lowered, kept: tuple[AttentionLayer, ...], options: Options) -> Partition:
    targets, rules = options.units.targets(), options.units.placing
    if rules is None:
        return partition(lowered.values, lowered.nodes, lowered.outputs, targets)
    plan = Plan(
        schema_version=SCHEMA_VERSION,
        name="",
        model=captured.model,
        values=tuple(lowered.values),
        nodes=tuple(lowered.nodes),
        regions=(),
        outputs=lowered.outputs,
        attention=kept,
        max_step_tokens=options.max_step_tokens,
        decisions=(),
        effective_bits=0.0,
        provenance=Provenance(source_format="", source_name="", source_files={}, options={}, versions={}),
    )
    return partition_mixed(plan, targets, rules)


def write_draft(
    root: Path,
    draft: Draft,
    captured: Captured,
    constants: Constants,
    units: Units,
    clock: Clock,
    windows: Sequence[Sequence[int]] = (),
) -> Written:
    """Weights, kernels and the text files into `root`; what is left is the manifest.

    windows: token ids that give the ranges of activations, where a target needs those; then kernels come after weights.
    """
    rounded = units.rounded_values(draft.plan)
    if rounded:
        known = _weights(root, draft, constants, clock)
        if windows:
            ranges = clock.run(
                "ranges",
                lambda: activation_ranges(root, draft.plan, known, windows, rounded, progress=lambda done: clock.tell("ranges", done)),
            )
            units = units.with_ranges(ranges)
        built: list[BuiltRegion] = clock.run("kernels", lambda: build_regions(draft.plan, units))
    else:
        clock.beside("kernels")
        with ThreadPoolExecutor(1) as pool:
            kernels = pool.submit(clock.timed, "kernels", lambda: build_regions(draft.plan, units))
            known = _weights(root, draft, constants, clock)
            built = kernels.result()
    check_boundaries(draft.plan, [(one.region, one.compiled) for one in built])
    notes = tuple(f"{one.region.device}: {one.region.name}: {note}" for one in built for note in one.compiled.notes)
    plan = msgspec.structs.replace(draft.plan, regions=write_regions(root, built), rejections=(*draft.plan.rejections, *notes))
    with reporting_disk_errors(root):
        for name, data in sorted(captured.files.items()):
            (root / name).write_bytes(data)
    return Written(plan, tuple(built), known)


def _weights(root: Path, draft: Draft, constants: Constants, clock: Clock) -> dict[str, FileEntry]:
    total = max(draft.layout.nbytes, 1)
    known: dict[str, FileEntry] = clock.run(
        "weights",
        lambda: write_weights(
            root,
            draft.layout,
            draft.values,
            draft.lowered.sources,
            constants,
            progress=lambda done: clock.tell("weights", done / total),
        ),
    )
    return known


def _check(plan: Plan) -> None:
    """Check the plan before minutes are spent on its weights; what is wrong with it is our fault, not the caller's."""
    try:
        check_plan(plan)
    except PlanError as error:
        raise InternalError(f"Lowering made a plan that is not valid: {error.message}") from error
