"""From a checkpoint to a plan: the whole compile, top to bottom."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from mixplan.compiler.clock import Clock
from mixplan.compiler.constants import Constants
from mixplan.compiler.draft import Draft, Written, make_draft, write_draft
from mixplan.compiler.fitting import Fitting, fit, parse_fitting
from mixplan.compiler.frontends import Captured, open_checkpoint
from mixplan.compiler.layout import SHARD_BYTES
from mixplan.compiler.options import Options, parse_options
from mixplan.compiler.output import new_directory, reporting_disk_errors
from mixplan.compiler.placing.rules import parse_placing
from mixplan.compiler.report import CompileReport, RegionSummary, summarize_schemes
from mixplan.compiler.scaling import InputScaler
from mixplan.compiler.search.costs import PROBE
from mixplan.compiler.search.request import Request, parse_request
from mixplan.compiler.search.run import Found, find_plan, take_over
from mixplan.compiler.search.summary import summarize_promise
from mixplan.compiler.search.text import TextSource
from mixplan.compiler.source_scheme import source_schemes
from mixplan.compiler.sources import SourceHashes
from mixplan.compiler.static_ranges import check_static, range_windows
from mixplan.compiler.tuning import collector_paused
from mixplan.runtime.errors import OutputError
from mixplan.runtime.plan import Plan
from mixplan.runtime.plan_io import write_manifest
from mixplan.runtime.progress import Progress
from mixplan.runtime.short_memory import reporting_short_memory
from mixplan.runtime.trust import record_trusted

if TYPE_CHECKING:
    from torch import nn

__all__ = ["compile"]


def compile(  # noqa: A001 - the package's verb
    model: str | Path | nn.Module,
    *,
    output: str | Path,
    scheme: str | None = None,
    group_size: int = 32,
    symmetric: bool = True,
    overrides: Sequence[str] = (),
    passes: Sequence[str] = (),
    dump_passes: str | Path | None = None,
    targets: Sequence[str] = ("cpu",),
    isa: Sequence[str] | None = None,
    max_step_tokens: int = 512,
    seed: int = 0,
    force: bool = False,
    kv_dtype: str | None = None,
    attention_scores: str | None = None,
    progress: Progress | None = None,
    example_inputs: tuple[Any, ...] | None = None,
    shard_bytes: int = SHARD_BYTES,
    text: TextSource | None = None,
    eval_text: TextSource | None = None,
    bits: float | str | None = None,
    max_size: int | str | None = None,
    max_loss: float | str | None = None,
    max_kld: float | str | None = None,
    max_latency: float | str | None = None,
    batch: int = 1,
    context: int = 512,
    candidates: Sequence[str] | None = None,
    pins: Sequence[str] = (),
    excludes: Sequence[str] = (),
    sensitivity: str | None = None,
    quantizer: str | None = None,
    scaling: str | None = None,
    provider: str | None = None,
    activation_type: str | None = None,
    place_tokens: int | None = None,
    move_above: str | None = None,
    boundary_below: str | None = None,
    transfer: str | None = None,
    unit_costs: Sequence[str] = (),
    tune: bool = False,
) -> CompileReport:
    """Compile a checkpoint (a Hugging Face directory, a GGUF file, an nn.Module in memory) into the plan directory `output`.

    scheme: FP32, BF16, FP8 or W{8,6,5,4,3,2}A{16,8}, with suffixes if wanted (W8A8:g64,asym, W3A16:nl,s8); or source (source:A8): each
    layer as the GGUF file stores it. group_size and symmetric are for schemes that do not say; 8-bit weights are per channel unless a
    suffix gives them groups. overrides: "LAYER=SCHEME" or "re:PATTERN=SCHEME"; an exact name beats a pattern, the last one given wins.
    passes: "module:function@after=NAME". targets: in order of preference; what none of them runs goes to the reference device. isa: levels
    to build, all by default: of the CPU, or GPU architectures. kv_dtype: "f32", "f16", "i8", "i4", "k8v4" or "fp8", with exceptions for
    layers and KV heads as in "i8,0=f16,3-5=i4,9.2=f16"; by default f32 for FP32, else f16. attention_scores: "f32" or "i8", with exceptions
    for layers as in "i8,0=f32". progress(stage, fraction) is called now and then.

    Instead of a scheme, one or two of bits, max_size, max_loss, max_kld and max_latency may be promised (as on the command line, "90MB",
    "1%", "5ms", or as numbers: bytes, a fraction, seconds): then each group of layers gets the best of `candidates`, and the plan is built
    and measured on held-out text until it keeps the promise. text: a file, or token ids; eval_text: what to measure on, else the text's
    second half. batch, context: of the decode step that max_latency is about. pins: overrides, which the search works around. excludes:
    layers that stay in BF16. sensitivity: fisher (the default), hessian or kld. See docs/explanation/search.md.

    With a scheme, a text is what weights are fitted to: quantizer: round (each to its nearest code), clip (scales by what columns count
    for, from a text of the package if none is given; the default then) or gptq (errors made good by later columns; the default with a
    text). scaling: none, awq or smooth (the default with a text): inputs of layers divided, and weights multiplied, where the op before can
    take it up. See docs/explanation/quantizers.md.

    provider: of the npu target, an onnxruntime execution provider: cpu (the default), qnn, vitisai, cann or openvino. activation_type:
    there, of activations that a scheme rounds: uint8, int8, uint16 or int16, as far as the provider takes them. Their scales are static, so
    such a scheme needs a text. See docs/how-to/run-on-an-npu.md.

    targets of one name such as "cpu+npu": compute units that share the plan, each node where the step is cheapest. place_tokens: of the
    step that costs are worked out for (256). A region leaves the first unit only where its compute takes more than move_above there
    ("100us") and less than boundary_below crosses its borders ("1MB"). transfer: "8GB/s+20us", a rate and a time. unit_costs: what
    a target does not know of itself, as in "npu:int8=40TOPS,bandwidth=60GB/s,call=50us". See docs/explanation/placement.md.

    tune: time the tile shapes of the gpu target's kernels on the GPU that is here, which must run one of the architectures, and keep the
    best in the user's cache; known ones come from there. Without it they come from a table, and the plan is the same on every machine.

    The plan appears whole or not at all. Options are checked before the checkpoint is opened, overrides against the model's layers before
    weights are read or kernels compiled. Raises CheckpointError, UnsupportedError (naming node, op and source line), OptionError,
    OutputError, PromiseError, CapacityError (there is no memory for it).
    """
    fitting = parse_fitting(quantizer, scaling, text)
    request = parse_request(
        text=text,
        eval_text=eval_text,
        bits=bits,
        max_size=max_size,
        max_loss=max_loss,
        max_kld=max_kld,
        max_latency=max_latency,
        batch=batch,
        context=context,
        candidates=candidates,
        pins=pins,
        excludes=excludes,
        overrides=overrides,
        scheme=scheme,
        group_size=group_size,
        symmetric=symmetric,
        sensitivity=sensitivity,
        quantizer=quantizer,
        scaling=fitting.scaling,
    )
    stated = (place_tokens, move_above, boundary_below, transfer, *unit_costs)
    placing = parse_placing(
        tokens=place_tokens, move_above=move_above, boundary_below=boundary_below, transfer=transfer, unit_costs=unit_costs
    )
    options = parse_options(
        scheme=(scheme or "W4A8") if request is None else str(PROBE),
        group_size=group_size,
        symmetric=symmetric,
        overrides=overrides if request is None else (),
        passes=passes,
        dump=dump_passes,
        targets=targets,
        isa=isa,
        max_step_tokens=max_step_tokens,
        seed=seed,
        kv_dtype=kv_dtype,
        attention_scores=attention_scores,
        shard_bytes=shard_bytes,
        provider=provider,
        activation_type=activation_type,
        placing=placing if any(one is not None for one in stated) else None,
        tune=tune,
    )
    check_static(options, fitting, searches=request is not None)
    options = options.with_facts(fitting.facts) if request is None else options.searched(request.promise.label, request.facts)
    clock = Clock(progress)
    with (
        reporting_short_memory(lambda: f"{_called(model)} in the stage {clock.stage!r} of the compile"),
        new_directory(Path(output), force=force) as root,
    ):
        with collector_paused():
            checkpoint = clock.run("open", lambda: open_checkpoint(model, example_inputs=example_inputs))
        try:
            with collector_paused():
                captured: Captured = clock.run("capture", checkpoint.capture)
            report = _compile(captured, root, options, request, fitting, clock)
            report.warnings += checkpoint.notes
        finally:
            checkpoint.close()
    report.output = Path(output)
    try:
        record_trusted(report.output)
    except OutputError as error:
        # The plan is whole; it is only not known to be of this machine, so its kernels will be rebuilt where it is loaded.
        report.warnings += (f"The plan could not be entered into the ledger of trusted plans: {error.message}",)
    return report


def _called(model: object) -> str:
    return str(model) if isinstance(model, str | Path) else type(model).__name__


def _compile(captured: Captured, root: Path, options: Options, request: Request | None, fitting: Fitting, clock: Clock) -> CompileReport:
    # Before the passes, which change the graph in place.
    notes: list[str] = []
    found: Found | None = None
    draft: Draft | None = None
    constants = Constants(captured.weights)
    kept = source_schemes(captured, options.source) if options.source is not None else None
    if request is None:
        fitted = fit(captured, fitting, options, clock, notes)
        constants = Constants(captured.weights, fitted.weights, None if kept is None else kept.rows)
        options = (options if kept is None else options.with_stored(kept.schemes)).with_facts(fitted.facts)
        if fitted.scaling is not None:
            options = options.with_scaler(InputScaler(Constants(captured.weights, fitted.scaling), fitting.scaling))
        draft = make_draft(captured, constants, options, clock)
    clock.beside("sources")
    with SourceHashes(captured.source.files) as hashes:
        if draft is None:
            assert request is not None
            found = find_plan(captured, options, request, root, clock)
            draft, written = found.attempt.draft, take_over(found, root, options, clock)
        else:
            windows = range_windows(captured, fitting, options)
            written = write_draft(root, draft, captured, constants, options.units, clock, windows)
        digests = hashes.result()
        clock.add("sources", hashes.seconds)
    plan = _with_sources(written.plan, digests)
    with reporting_disk_errors(root):
        digest = clock.run("manifest", lambda: write_manifest(root, plan, known=written.known))
    report = _report(root, plan, digest, draft, written, clock)
    compiled = (f"{one.region.name}: {note}." for one in written.built for note in one.compiled.notes)
    report.warnings += (*notes, *(() if kept is None else kept.notes()), *compiled)
    if found is not None and request is not None:
        report.promise = summarize_promise(found, request)
    return report


def _with_sources(plan: Plan, digests: dict[str, str]) -> Plan:
    return msgspec.structs.replace(plan, provenance=msgspec.structs.replace(plan.provenance, source_files=digests))


def _report(root: Path, plan: Plan, digest: str, draft: Draft, written: Written, clock: Clock) -> CompileReport:
    regions = [
        RegionSummary(
            name=one.region.name,
            device=one.region.device,
            nodes=one.region.stop - one.region.start,
            kernels={level: len(binary) for level, binary in sorted(one.compiled.kernels.items())},
            reason=one.region.reason,
        )
        for one in written.built
    ]
    return CompileReport(
        output=root,
        digest=digest,
        name=plan.name,
        parameters=plan.model.parameters,
        weight_bytes=draft.layout.nbytes,
        plan_bytes=sum(path.stat().st_size for path in root.rglob("*") if path.is_file()),
        requested_bits=draft.bits.requested,
        effective_bits=plan.effective_bits,
        schemes=summarize_schemes(plan.decisions),
        regions=regions,
        refused=draft.parts.refused,
        matches=dict(draft.passed.matches),
        rejections=plan.rejections,
        seconds=clock.seconds,
        parallel=clock.parallel,
    )
