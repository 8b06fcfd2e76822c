"""`mixplan bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mixplan.runtime.terminal import emit_json, plain_table, show

__all__ = ["bench_command"]

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_QUICK = {"requests": 100, "launches": 3, "rounds": 1}


@click.command(name="bench")
@click.argument("plan", type=click.Path(path_type=Path))
@click.option("--phases", metavar="NAMES", help="Of cold, steady and stress, by comma. Default: all, and none with --profile.")
@click.option("--requests", type=click.IntRange(1), help="Requests of the steady phase. Default: 1000, or all of a trace.")
@click.option("--in-flight", type=click.IntRange(1), default=1, show_default=True, help="Requests at once in the steady phase.")
@click.option("--concurrency", type=click.IntRange(1), default=200, show_default=True, help="Requests at once in the stress phase.")
@click.option("--rounds", type=click.IntRange(1), help="How often the stress phase is run. Default: 3.")
@click.option("--launches", type=click.IntRange(1), help="Processes of the cold phase. Default: 5.")
@click.option("--cold-prompt", type=click.IntRange(1), default=128, show_default=True, help="Tokens of the prompt of a cold start.")
@click.option("--quick", is_flag=True, help="100 requests, 3 launches and 1 round, where not said otherwise.")
@click.option("--text", type=_FILE, help="Cut the prompts from this text. Default: token ids drawn from the vocabulary.")
@click.option("--trace", type=_FILE, help="Take the requests from JSON lines: prompt, token_ids or prompt_tokens; max_tokens; arrival.")
@click.option("--prompt-tokens", default="16:256", show_default=True, metavar="LEAST:MOST", help="Lengths of prompts, but of a trace's.")
@click.option("--new-tokens", default="8:32", show_default=True, metavar="LEAST:MOST", help="Lengths of answers, but of a trace's.")
@click.option("--prefill-tokens", type=click.IntRange(1), help="Prompt tokens in a step that others decode in. Default: the scheduler's.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of lengths, places in the text and token ids.")
@click.option("--threads", type=click.IntRange(1), help="Default: the cores this process may use.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, gpu, npu or reference.")
@click.option("--isa", help="Force an ISA level; one that the plan lacks is compiled on the spot.")
@click.option("--trust", is_flag=True, help="Load the plan's own kernels although they were not built here.")
@click.option("--strict", is_flag=True, help="A kernel or a device that fails is an error; nothing takes its place.")
@click.option("--profile", is_flag=True, help="Where the time goes: by kernel, layer and region, with rates and shares of the ceiling.")
@click.option("--context", default="128", show_default=True, help="With --profile: tokens before a decode step; several by comma.")
@click.option("--batch", default="1", show_default=True, help="With --profile: sequences in a decode step; several by comma.")
@click.option("--prefill", default="512", show_default=True, help="With --profile: tokens of a prompt; several by comma.")
@click.option("--baseline", type=_FILE, help="Compare with a report that --json printed before.")
@click.option("--fail-on-regression", is_flag=True, help="With --baseline: exit code 1 where a figure is worse, beyond noise.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.pass_context
def bench_command(
    ctx: click.Context, /, plan: Path, phases: str | None, profile: bool, baseline: Path | None, as_json: bool, **options: Any
) -> None:
    """Measure PLAN: cold start, steady state, stress; and where the time goes.

    cold: fresh processes, from their start to the first token. steady: requests of mixed lengths, one at a time or as a trace says, with
    percentiles of the time to the first token, between tokens and to the end. stress: many requests at once, and how busy the cores are.

    \b
    mixplan bench smol.plan
    mixplan bench smol.plan --quick --json > before.json
    mixplan bench smol.plan --quick --baseline before.json
    mixplan bench smol.plan --profile --context 128,4096 --batch 1,16 --prefill 512
    """
    from mixplan.runtime.bench.baseline import compare, read_baseline
    from mixplan.runtime.bench.render import render_comparison, render_hardware, render_phases
    from mixplan.runtime.bench.render_profile import render_profile
    from mixplan.runtime.bench.run import run_bench
    from mixplan.runtime.progress import terminal_progress
    from mixplan.targets.commands.meter import cpu_meter

    if options["fail_on_regression"] and baseline is None:
        raise click.UsageError("--fail-on-regression needs --baseline, to compare with.")
    theirs = read_baseline(baseline) if baseline is not None else None
    asked, profiled = _options(phases, profile, options)
    meter, missing = cpu_meter()
    if meter is None:
        click.echo(f"note: no ceilings are measured, and no shares of them are shown: {missing}", err=True)
    with terminal_progress(remaining=True, per_second=2) as progress:
        report = run_bench(plan, asked, profiled, progress=progress, meter=meter)
    comparison = compare(report, theirs) if theirs is not None else None
    if comparison is not None:
        for warning in comparison.warnings:
            click.echo(f"warning: {warning}", err=True)
    if as_json:
        emit_json(report.to_dict() | ({"comparison": comparison.to_dict()} if comparison is not None else {}))
    else:
        show(*render_hardware(report, plain_table), *render_phases(report, plain_table))
        for one in report.profile:
            show(*render_profile(one, plain_table))
        if comparison is not None:
            show(*render_comparison(comparison, plain_table))
    if options["fail_on_regression"] and comparison is not None and comparison.regressions:
        ctx.exit(1)


def _options(phases: str | None, profile: bool, given: dict[str, Any]) -> tuple[Any, Any]:
    """Options of the phases, and of the profile (None where there is none)."""
    from mixplan.runtime.bench.options import PHASES, BenchOptions, ProfileOptions, parse_numbers, parse_range
    from mixplan.runtime.bench.workload import Lengths

    for name, value in _QUICK.items():
        if given["quick"] and given[name] is None and not (name == "requests" and given["trace"]):
            given[name] = value
    chosen = (() if profile else PHASES) if phases is None else tuple(name.strip() for name in phases.split(",") if name.strip())
    plain = ("in_flight", "concurrency", "cold_prompt", "text", "trace", "seed", "prefill_tokens")
    loading = ("threads", "device", "isa", "trust", "strict")
    options = BenchOptions(
        phases=chosen,
        lengths=Lengths(parse_range(given["prompt_tokens"], "--prompt-tokens"), parse_range(given["new_tokens"], "--new-tokens")),
        **{name: given[name] for name in (*plain, *loading)},
        **{name: given[name] for name in _QUICK if given[name] is not None},
    )
    numbers = [parse_numbers(given[name], f"--{name}") for name in ("context", "batch", "prefill")]
    return options, ProfileOptions(*numbers) if profile else None
