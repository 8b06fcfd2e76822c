"""A report as tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mixplan.runtime.bench.baseline import Change, Comparison
from mixplan.runtime.bench.report import BenchReport, PhaseReport
from mixplan.runtime.bench.stats import Figure

__all__ = ["render_comparison", "render_hardware", "render_phases"]

_TITLES = {"cold": "Cold start", "steady": "Steady state", "stress": "Stress"}
_LATENCIES = {"ttft": "time to first token", "itl": "between tokens", "e2e": "end to end"}
_NAMES = {
    "interpreter_seconds": "process start to interpreter",
    "import_seconds": "import",
    "load_seconds": "load",
    "prefill_seconds": "prompt to first token",
    "first_token_seconds": "process start to first token",
    "peak_rss_first_token_bytes": "peak memory at the first token",
    "peak_rss_bytes": "peak memory",
    "peak_rss_above_weights_bytes": "peak memory less the weights",
    "tokens_per_second": "new tokens",
    "prompt_tokens_per_second": "prompt tokens",
    "requests_per_second": "requests",
    "core_utilisation_mean": "core utilisation, mean",
    "core_utilisation_variance": "core utilisation, variance",
}
MakeTable = Callable[..., Any]


def number(value: float, unit: str) -> str:
    """With a unit that a reader knows: ms, MiB."""
    if unit == "s":
        return f"{value * 1e3:,.2f} ms" if value < 0.1 else f"{value * 1e3:,.0f} ms"
    if unit == "bytes":
        return f"{value / (1 << 20):,.1f} MiB"
    return f"{value:,.1f} {unit}" if unit else f"{value:.3f}"


def _spread(figure: Figure) -> str:
    return "" if figure.spread is None else f"\u00b1{figure.spread * 100:.0f}%"


def render_hardware(report: BenchReport, table: MakeTable) -> list[Any]:
    """The plan and the machine."""
    made = table("Plan and machine", "fact", "value")
    plan, machine = report.plan, report.hardware
    bandwidth = machine["read_bandwidth"]
    rate = f"{bandwidth['bytes_per_second'] / 1e9:.1f} GB/s"
    caches = ", ".join(f"L{c['level']} {c['size'] // 1024:,} KiB" for c in machine["caches"])
    rows = {
        "plan": f"{plan['name']} ({plan['scheme']}, {plan['effective_bits']} bits, weights {number(plan['weight_bytes'], 'bytes')})",
        "CPU": machine["model"] or "not told",
        "cores": f"{machine['cores']} to use, {machine['machine_cores']} in the machine; {machine['threads']} threads",
        "ISA": f"runs {' '.join(machine['isa'])} on {' '.join(machine['devices'])}; the CPU has {' '.join(machine['levels'])}",
        "caches": caches or "not told",
        "memory": f"{(machine['memory_limit'] or 0) / (1 << 30):.1f} GiB, huge pages {machine['huge_pages'] or 'not told'}",
        "memory read": f"{rate} of {number(bandwidth['working_set'], 'bytes')}, by {bandwidth['by']}",
        "system": f"Linux {machine['kernel']}, Python {machine['python']}, numpy {machine['numpy']}, mixplan {machine['mixplan']}",
    }
    for name, value in rows.items():
        made.add_row(name, value)
    return [made]


def render_phases(report: BenchReport, table: MakeTable) -> list[Any]:
    """A table of latencies and one of other figures for each phase."""
    parts: list[Any] = []
    for name, phase in report.phases.items():
        title = f"\n{_TITLES.get(name, name)}: {_about(phase.facts)}"
        latencies = [key for key in _LATENCIES if f"{key}_p50" in phase.figures]
        if latencies:
            made = table(title, "latency", "P50:r", "", "P90:r", "", "P99:r", "")
            for key in latencies:
                figures = [phase.figures[f"{key}_p{rank}"] for rank in (50, 90, 99)]
                made.add_row(
                    _LATENCIES[key], *(cell for figure in figures for cell in (number(figure.value, figure.unit), _spread(figure)))
                )
            parts.append(made)
            title = ""
        made = table(title, "figure", "value:r", "")
        for key, figure in phase.figures.items():
            if key in _NAMES:
                made.add_row(_NAMES[key], number(figure.value, figure.unit), _spread(figure))
        _add_cores(made, phase)
        parts.append(made)
    return parts


def _add_cores(made: Any, phase: PhaseReport) -> None:
    busy = phase.facts.get("core_utilisation")
    if busy and busy["by_core"]:
        made.add_row(f"{busy['source']}, each", " ".join(f"{share:.2f}" for share in busy["by_core"]), "")


def _about(facts: Mapping[str, Any]) -> str:
    work = facts.get("workload")
    if work is None:
        return f"{facts.get('launches')} processes, prompt of {facts.get('prompt_tokens')} tokens (\u00b1: spread of the parts of the run)"
    prompt, new = work["prompt_tokens"], work["new_tokens"]
    how = "by the trace's clock" if work["arrivals"] else f"{facts.get('in_flight', facts.get('concurrency'))} at a time"
    return (
        f"{work['requests']:,} requests, {how}; from {work['source']}, prompts of {prompt['least']} to {prompt['most']} tokens "
        f"(mean {prompt['mean']:.0f}), {new['least']} to {new['most']} new (mean {new['mean']:.0f})"
    )


def render_comparison(comparison: Comparison, table: MakeTable) -> list[Any]:
    """Ratios to the baseline; regressions are marked."""
    made = table("\nAgainst the baseline", "figure", "here:r", "baseline:r", "ratio:r", "noise:r", "verdict")
    for change in comparison.changes:
        made.add_row(*_row(change))
    parts: list[Any] = [made]
    if comparison.unmatched:
        parts.append(f"Not compared, since only one report has them (or they are 0): {', '.join(comparison.unmatched)}")
    count = len(comparison.regressions)
    parts.append(f"{count} regression{'' if count == 1 else 's'} beyond noise." if count else "No regressions beyond noise.")
    return parts


def _row(change: Change) -> tuple[str, ...]:
    ours, theirs = change.ours, change.theirs
    verdict = {"worse": "REGRESSION", "better": "better", "same": ""}[change.verdict]
    noise = f"\u00b1{change.noise * 100:.0f}%"
    return (
        f"{change.phase} {change.name}",
        number(ours.value, ours.unit),
        number(theirs.value, theirs.unit),
        f"{change.ratio:.3f}",
        noise,
        verdict,
    )
