"""The whole of `mixplan bench`: phases, profile, and the report of both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mixplan.runtime.bench.fingerprint import fingerprint
from mixplan.runtime.bench.meter import Meter
from mixplan.runtime.bench.options import BenchOptions, ProfileOptions
from mixplan.runtime.bench.phases import run_phases
from mixplan.runtime.bench.prepare import plan_facts
from mixplan.runtime.bench.profile import profile_decode, profile_prefill
from mixplan.runtime.bench.profile_table import profile_to_dict
from mixplan.runtime.bench.report import SCHEMA, BenchReport
from mixplan.runtime.devices.cpu_info import allowed_cores
from mixplan.runtime.errors import OptionError
from mixplan.runtime.hal import PAGE_SIZE
from mixplan.runtime.loading import load
from mixplan.runtime.model import Model
from mixplan.runtime.progress import Progress

__all__ = ["run_bench"]


def run_bench(
    path: Path,
    options: BenchOptions,
    profile: ProfileOptions | None = None,
    *,
    progress: Progress | None = None,
    meter: Meter | None = None,
) -> BenchReport:
    """Run the phases of `options`, then the profile where one is asked for.

    meter: measures the machine's ceilings; without it the report has no shares of them, and the read bandwidth is what numpy reaches.
    """
    show = progress if progress is not None else _silent
    report = run_phases(path, options, show=show, meter=meter) if options.phases else None
    if profile is None:
        if report is None:
            raise OptionError("There is nothing to do: no phases and no profile.")
        return report
    with _load(path, options, profile) as model:
        threads = options.threads or allowed_cores()
        profiles = _profiles(model, profile, threads, show, meter)
        if report is None:
            report = BenchReport(SCHEMA, plan_facts(model), fingerprint(model, threads, meter))
    return BenchReport(SCHEMA, report.plan, report.hardware, report.phases, profiles)


def _silent(stage: str, fraction: float) -> None:
    """No progress."""


def _load(path: Path, options: BenchOptions, profile: ProfileOptions) -> Model:
    """With room for the largest batch at the longest context."""
    longest = max((*profile.contexts, *profile.prefills), default=0) + PAGE_SIZE
    batch = max(profile.batches, default=1)
    sizes = [-(-longest // PAGE_SIZE) + 4] + [batch * (-(-(context + 1) // PAGE_SIZE)) for context in profile.contexts]
    return load(
        path,
        device=options.device,
        threads=options.threads,
        isa=options.isa,
        trust=options.trust,
        strict=options.strict,
        max_sequences=batch + 1,
        kv_tokens=options.kv_tokens or max(sizes) * PAGE_SIZE,
        profile=True,
    )


def _profiles(model: Model, options: ProfileOptions, threads: int, show: Progress, meter: Meter | None) -> list[dict[str, Any]]:
    steps = [profile_decode(model, context, batch, progress=show) for context in options.contexts for batch in options.batches]
    steps += [profile_prefill(model, tokens, progress=show) for tokens in options.prefills]
    if not steps:
        return []
    limits, ceilings = None, None
    if meter is not None:
        # In this process, and right after what is compared with it: bandwidth differs from launch to launch.
        largest = max(step.cost.memory_bytes for step in steps)
        limits, ceilings = meter.limits(largest, threads, _level(model))
    return [{**profile_to_dict(model.plan, step, limits), "ceilings": ceilings} for step in steps]


def _level(model: Model) -> str:
    """The ISA level that most nodes run on."""
    nodes: dict[str, int] = {}
    for place in model.placement:
        nodes[place.isa] = nodes.get(place.isa, 0) + place.nodes
    return max(nodes, key=lambda level: nodes[level], default="")
