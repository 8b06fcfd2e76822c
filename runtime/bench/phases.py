"""The three phases, one after the other: cold start, steady state, stress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace as replace_struct

from mixplan.runtime.bench.cold import cold_start
from mixplan.runtime.bench.fingerprint import fingerprint
from mixplan.runtime.bench.meter import Meter
from mixplan.runtime.bench.options import BenchOptions
from mixplan.runtime.bench.prepare import plan_facts, prepare, token_limit
from mixplan.runtime.bench.report import SCHEMA, BenchReport, PhaseReport
from mixplan.runtime.bench.serve import serve
from mixplan.runtime.bench.serving_figures import latency_figures, round_figures
from mixplan.runtime.bench.stats import Figure, repeated
from mixplan.runtime.bench.utilisation import Utilisation, UtilisationSampler
from mixplan.runtime.bench.workload import Workload
from mixplan.runtime.model import Model
from mixplan.runtime.progress import Progress

__all__ = ["run_phases"]

_WARM_UP = 3


def run_phases(path: Path, options: BenchOptions, *, show: Progress, meter: Meter | None = None) -> BenchReport:
    """Run the phases that `options` name on the plan at `path`.

    Raises OptionError for options, a text or a trace that do not fit the plan, before anything is measured, and whatever `load` raises.
    """
    phases: dict[str, PhaseReport] = {}
    loaded = prepare(path, options)
    with loaded.model as model:
        if "cold" in options.phases:
            phases["cold"] = _cold(path, options, model, show)
        if "steady" in options.phases:
            phases["steady"] = _steady(model, loaded.steady, options, show)
        if "stress" in options.phases:
            phases["stress"] = _stress(model, loaded.stress, loaded.threads, options, show)
        return BenchReport(SCHEMA, plan_facts(model), fingerprint(model, loaded.threads, meter), phases)


def _cold(path: Path, options: BenchOptions, model: Model, show: Progress) -> PhaseReport:
    prompt = min(options.cold_prompt, token_limit(model) - 1)
    ids = np.random.default_rng(options.seed).integers(0, model.plan.model.vocab_size, prompt)
    figures = cold_start(
        path,
        ids.tolist(),
        launches=options.launches,
        device=options.device,
        threads=options.threads,
        trust=options.trust,
        isa=options.isa,
        strict=options.strict,
        progress=lambda fraction: show("cold start", fraction),
    )
    return PhaseReport(figures, {"launches": options.launches, "prompt_tokens": prompt})


def _steady(model: Model, workload: Workload, options: BenchOptions, show: Progress) -> PhaseReport:
    _warm_up(model, workload)
    served = serve(
        model,
        workload.requests,
        in_flight=options.in_flight,
        prefill_tokens=options.prefill_tokens,
        progress=lambda fraction: show("steady state", fraction),
    )
    return PhaseReport(latency_figures(served), {"workload": workload.describe(), "in_flight": options.in_flight})


def _stress(model: Model, workload: Workload, threads: int, options: BenchOptions, show: Progress) -> PhaseReport:
    rounds, busy = [], []
    _warm_up(model, workload)
    for number in range(options.rounds):

        def shown(fraction: float, before: int = number) -> None:
            show("stress", (before + fraction) / options.rounds)

        with UtilisationSampler(threads) as sampler:
            served = serve(
                model, workload.requests, in_flight=len(workload.requests), prefill_tokens=options.prefill_tokens, progress=shown
            )
        rounds.append(served)
        busy.append(sampler.result)
    return PhaseReport(round_figures(rounds) | _busy_figures(busy), _stress_facts(model, workload, busy, options))


def _busy_figures(busy: Sequence[Utilisation]) -> dict[str, Figure]:
    if not all(one.samples for one in busy):
        return {}
    variance = repeated([one.variance for one in busy], "")
    # A variance of n values is itself uncertain by a factor of sqrt(2 / n), and by more where they are not normal.
    uncertain = 2 * sqrt(2 / sum(one.samples * len(one.by_core) for one in busy))
    return {
        "core_utilisation_mean": repeated([one.mean for one in busy], "", "higher"),
        "core_utilisation_variance": replace_struct(variance, spread=max(variance.spread or 0.0, uncertain)),
    }


def _stress_facts(model: Model, workload: Workload, busy: Sequence[Utilisation], options: BenchOptions) -> dict[str, Any]:
    return {
        "workload": workload.describe(),
        "concurrency": len(workload.requests),
        "rounds": options.rounds,
        "kv_tokens": model.caches.pages * model.caches.page_size,
        "core_utilisation": {"source": busy[-1].source, "samples": busy[-1].samples, "by_core": [round(x, 4) for x in busy[-1].by_core]},
        "peak_rss_bytes": model.metrics().peak_rss_bytes,
    }


def _warm_up(model: Model, workload: Workload) -> None:
    serve(model, [replace(request, arrival=None) for request in workload.requests[:_WARM_UP]], in_flight=_WARM_UP)
