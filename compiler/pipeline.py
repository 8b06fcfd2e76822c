"""From a checkpoint to a plan: the whole compile, top to bottom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec

from mixplan.compiler.attention import attention_layers
from mixplan.compiler.constants import Constants
from mixplan.compiler.decisions import make_decisions
from mixplan.compiler.emit import write_weights
from mixplan.compiler.frontends import Captured, open_checkpoint
from mixplan.compiler.importance import input_moments
from mixplan.compiler.kernels import BuiltRegion, build_regions, write_regions
from mixplan.compiler.layout import SHARD_BYTES, make_layout
from mixplan.compiler.lowering import Lowered, lower
from mixplan.compiler.output import new_directory, reporting_disk_errors
from mixplan.compiler.partition import Partition, partition
from mixplan.compiler.provenance import provenance
from mixplan.compiler.report import CompileReport, RegionSummary, summarize_schemes
from mixplan.compiler.sources import SourceHashes
from mixplan.compiler.tuning import collector_paused
from mixplan.passes.base import PassContext, PassOptions
from mixplan.passes.manager import PassManager, PipelineReport
from mixplan.passes.pipeline import pass_manager
from mixplan.passes.precision.overrides import parse_override
from mixplan.passes.precision.schemes import Scheme, parse_scheme
from mixplan.runtime.dtypes import DType
from mixplan.runtime.errors import InternalError, MixplanError, OptionError, OutputError, PlanError
from mixplan.runtime.formats import GROUP_SIZES
from mixplan.runtime.plan import SCHEMA_VERSION, Plan
from mixplan.runtime.plan_check import check_plan
from mixplan.runtime.plan_io import write_manifest
from mixplan.runtime.progress import Progress
from mixplan.runtime.trust import record_trusted
from mixplan.targets.registry import get_target

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["compile"]

_KV_DTYPES = {"f32": DType.f32, "f16": DType.f16}


@dataclass(frozen=True)
class _Options:
    """The caller's options, parsed and checked."""

    scheme: Scheme
    manager: PassManager
    pass_options: PassOptions
    dump: Path | None
    targets: tuple[str, ...]
    levels: tuple[str, ...]
    max_step_tokens: int
    kv_dtype: DType
    seed: int
    shard_bytes: int
    texts: dict[str, str]


@dataclass
class _Clock:
    """Seconds by stage."""

    progress: Progress | None
    seconds: dict[str, float] = field(default_factory=dict)
    parallel: tuple[str, ...] = ()

    def beside(self, *stages: str) -> None:
        """Stages that run beside others, and put in their seconds themselves."""
        self.parallel += stages
        self.seconds.update(dict.fromkeys(stages, 0.0))

    def run(self, stage: str, work: Callable[[], Any]) -> Any:
        if self.progress is not None:
            self.progress(stage, 0.0)
        started = perf_counter()
        result = work()
        self.seconds[stage] = perf_counter() - started
        if self.progress is not None:
            self.progress(stage, 1.0)
        return result


def compile(  # noqa: A001 - the package's verb
    model: str | Path | nn.Module,
    *,
    output: str | Path,
    scheme: str = "W4A8",
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
    progress: Progress | None = None,
    example_inputs: tuple[Any, ...] | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> CompileReport:
    """Compile a checkpoint (a Hugging Face directory, a GGUF file, an nn.Module in memory) into the plan directory `output`.

    scheme: FP32, BF16, W8A16, W8A8, W4A16 or W4A8, with a suffix if wanted (W8A8:g64,asym). group_size and symmetric are for schemes that
    do not say; 8-bit weights are per channel unless a suffix gives them groups. overrides: "LAYER=SCHEME" or "re:PATTERN=SCHEME"; an
    exact name beats a pattern, the last one given wins. passes: "module:function@after=NAME". targets: in order of preference; what none
    of them runs goes to the reference device. isa: levels to build, all by default. kv_dtype: "f32" or "f16"; by default f32 for FP32,
    else f16. progress(stage, fraction) is called now and then.

    The plan appears whole or not at all. Options are checked before the checkpoint is opened, overrides against the model's layers before
    weights are read or kernels compiled. Raises CheckpointError, UnsupportedError (naming node, op and source line), OptionError,
    OutputError.
    """
    options = _parse(
        scheme, group_size, symmetric, overrides, passes, dump_passes, targets, isa, max_step_tokens, seed, kv_dtype, shard_bytes
    )
    clock = _Clock(progress)
    with new_directory(Path(output), force=force) as root:
        with collector_paused():
            checkpoint = clock.run("open", lambda: open_checkpoint(model, example_inputs=example_inputs))
        try:
            with collector_paused():
                captured: Captured = clock.run("capture", checkpoint.capture)
            report = _compile(captured, root, options, clock)
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


def _compile(captured: Captured, root: Path, options: _Options, clock: _Clock) -> CompileReport:
    # Before the passes, which change the graph in place.
    notes: list[str] = []
    moments = clock.run("calibrate", lambda: _calibrate(captured, notes)) if _four_bits(options) else {}
    constants = Constants(captured.weights, moments)
    tied = dict(getattr(captured, "tied", {}))
    context = PassContext(options=options.pass_options, tied=tied)
    with collector_paused():
        passed: PipelineReport = clock.run("passes", lambda: options.manager.run(captured.graph, context, dump=options.dump))
        lowered: Lowered = clock.run("lower", lambda: lower(passed.graph, constants))
    parts = partition(lowered.values, lowered.nodes, lowered.outputs, [get_target(name) for name in options.targets])
    layout = make_layout(lowered.values, lowered.sources, options.shard_bytes)
    decisions, bits = make_decisions(lowered, context.decisions, tied, options.scheme)
    values = [msgspec.structs.replace(v, tensor=layout.tensors[i]) if i in layout.tensors else v for i, v in enumerate(lowered.values)]
    plan = Plan(
        schema_version=SCHEMA_VERSION,
        name=f"{captured.source.name}-{options.scheme}",
        model=captured.model,
        values=tuple(values),
        nodes=tuple(parts.nodes),
        regions=tuple(parts.regions),
        outputs=lowered.outputs,
        attention=attention_layers(lowered, options.kv_dtype),
        max_step_tokens=options.max_step_tokens,
        decisions=decisions,
        effective_bits=bits.achieved,
        provenance=provenance(captured, options.texts, options.seed),
        passes=dict(passed.matches),
        rejections=tuple(str(rejection) for rejection in context.rejections),
    )
    _check(plan)
    clock.beside("sources", "kernels")
    with SourceHashes(captured.source.files) as hashes, ThreadPoolExecutor(1) as pool:
        kernels = pool.submit(_timed, clock, "kernels", lambda: build_regions(plan, options.levels))
        total = max(layout.nbytes, 1)
        watch = None if clock.progress is None else (lambda done: clock.progress("weights", done / total))  # type: ignore[misc]
        known = clock.run("weights", lambda: write_weights(root, layout, values, lowered.sources, constants, progress=watch))
        built: list[BuiltRegion] = kernels.result()
        origin = msgspec.structs.replace(plan.provenance, source_files=hashes.result())
        clock.seconds["sources"] = hashes.seconds
    plan = msgspec.structs.replace(plan, regions=write_regions(root, built), provenance=origin)
    with reporting_disk_errors(root):
        for name, data in sorted(captured.files.items()):
            (root / name).write_bytes(data)
        digest = clock.run("manifest", lambda: write_manifest(root, plan, known=known))
    report = _report(root, plan, digest, built, parts, passed, bits.requested, layout.nbytes, clock)
    report.warnings += tuple(notes)
    return report


def _four_bits(options: _Options) -> bool:
    schemes = [options.scheme, *(rule.scheme for rule in options.pass_options.overrides)]
    return any(scheme.weight.bits == 4 for scheme in schemes)


def _calibrate(captured: Captured, notes: list[str]) -> dict[str, Tensor]:
    """How much the columns of each weight matter; where the graph cannot be run for it, nothing and a note."""
    try:
        return input_moments(captured)
    except MixplanError:
        raise
    except Exception as error:
        # Whatever torch cannot run here only costs some accuracy.
        notes.append(f"Weights were rounded without calibration, since the graph could not be run: {error}")
        return {}


def _check(plan: Plan) -> None:
    """Check the plan before minutes are spent on its weights; what is wrong with it is our fault, not the caller's."""
    try:
        check_plan(plan)
    except PlanError as error:
        raise InternalError(f"Lowering made a plan that is not valid: {error.message}") from error


def _timed(clock: _Clock, stage: str, work: Callable[[], Any]) -> Any:
    started = perf_counter()
    result = work()
    clock.seconds[stage] = perf_counter() - started
    return result


def _report(
    root: Path,
    plan: Plan,
    digest: str,
    built: Sequence[BuiltRegion],
    parts: Partition,
    passed: PipelineReport,
    requested_bits: float,
    weight_bytes: int,
    clock: _Clock,
) -> CompileReport:
    regions = [
        RegionSummary(
            name=one.region.name,
            device=one.region.device,
            nodes=one.region.stop - one.region.start,
            kernels={level: len(binary) for level, binary in sorted(one.compiled.kernels.items())},
            reason=one.region.reason,
        )
        for one in built
    ]
    return CompileReport(
        output=root,
        digest=digest,
        name=plan.name,
        parameters=plan.model.parameters,
        weight_bytes=weight_bytes,
        plan_bytes=sum(path.stat().st_size for path in root.rglob("*") if path.is_file()),
        requested_bits=requested_bits,
        effective_bits=plan.effective_bits,
        schemes=summarize_schemes(plan.decisions),
        regions=regions,
        refused=parts.refused,
        matches=dict(passed.matches),
        rejections=plan.rejections,
        seconds=clock.seconds,
        parallel=clock.parallel,
    )


def _parse(
    scheme: str,
    group_size: int,
    symmetric: bool,
    overrides: Sequence[str],
    passes: Sequence[str],
    dump: str | Path | None,
    targets: Sequence[str],
    isa: Sequence[str] | None,
    max_step_tokens: int,
    seed: int,
    kv_dtype: str | None,
    shard_bytes: int,
) -> _Options:
    def grouped(text: str) -> int | None:
        """8-bit weights are per channel unless their own suffix gives them groups."""
        return group_size if text.strip().upper().startswith("W4") else None

    parsed = parse_scheme(scheme, group_size=grouped(scheme), asymmetric=not symmetric)
    rules = tuple(parse_override(text, group_size=grouped(text.rpartition("=")[2]), asymmetric=not symmetric) for text in overrides)
    if not targets:
        raise OptionError("targets is empty; give at least one, such as 'cpu'.")
    for name in targets:
        get_target(name).resolve_levels(isa or ())
    if group_size not in GROUP_SIZES:
        raise OptionError(f"group_size is {group_size}; allowed are {', '.join(map(str, GROUP_SIZES))}.")
    pass_options = PassOptions(scheme=parsed, overrides=rules, target=targets[0], user_passes=tuple(passes))
    if not 1 <= max_step_tokens <= 8192:
        raise OptionError(f"max_step_tokens is {max_step_tokens}; allowed are 1 to 8192.")
    if kv_dtype is not None and kv_dtype not in _KV_DTYPES:
        raise OptionError(f"kv_dtype is {kv_dtype!r}; allowed are {', '.join(_KV_DTYPES)}.")
    cache = kv_dtype or ("f32" if parsed.name == "FP32" else "f16")
    texts = {
        "scheme": str(parsed),
        "overrides": " ".join(rule.text for rule in rules),
        "passes": " ".join(passes),
        "targets": " ".join(targets),
        "isa": " ".join(isa) if isa else "all",
        "kv_dtype": cache,
        "max_step_tokens": str(max_step_tokens),
    }
    return _Options(
        scheme=parsed,
        manager=pass_manager(pass_options),
        pass_options=pass_options,
        dump=None if dump is None else Path(dump),
        targets=tuple(targets),
        levels=tuple(isa or ()),
        max_step_tokens=max_step_tokens,
        kv_dtype=_KV_DTYPES[cache],
        seed=seed,
        shard_bytes=shard_bytes,
        texts=texts,
    )
