"""The report on a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from benchmarks.compare.results import Results
from benchmarks.compare.sizes import Shape
from benchmarks.compare.stacks import STACKS
from benchmarks.compare.targets import Line, lines, share_of_limit
from benchmarks.compare.workload import MEASURES

__all__ = ["format_figure", "report"]

_HEADS = {
    "decode": "decode",
    "decode_4096": "at 4096",
    "prefill_512": "prefill 512",
    "prefill_2048": "2048",
    "batch_16": "batch 16",
    "batch_32": "32",
    "ttft_128": "TTFT 128",
    "cold_start": "cold start",
    "peak_rss": "peak RSS",
}


def format_figure(value: float, unit: str) -> str:
    """Three digits or so, with the unit where it is not tokens/s."""
    if math.isnan(value):
        return "-"
    if unit == "tok/s":
        return f"{value:.0f}" if value >= 100 else f"{value:.1f}"
    if unit == "s":
        return f"{value * 1e3:.0f} ms" if value < 1 else f"{value:.2f} s"
    if unit == "MB":
        return f"{value:.0f} MB"
    return f"{value:.1%}" if unit else f"{value:.2f}"


def _grid(rows: Sequence[Sequence[str]], markdown: bool) -> str:
    if markdown:
        lines = [f"| {' | '.join(row)} |" for row in rows]
        return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(c.rjust(w) if i else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))) for row in rows)


def _figures(results: Results, markdown: bool) -> str:
    shown = [m for m in MEASURES if any(s.values(m.name) for s in results.stacks.values())]
    rows = [["", *(_HEADS[m.name] for m in shown), "perplexity"]]
    for name, stack in results.stacks.items():
        row = [name]
        for m in shown:
            text = format_figure(stack.median(m.name), m.unit)
            spread = stack.spread(m.name)
            row.append(text if text == "-" or math.isnan(spread) else f"{text} ±{spread / 2:.0%}")
        rows.append([*row, "-" if math.isnan(stack.perplexity) else f"{stack.perplexity:.2f}"])
    return _grid(rows, markdown)


def _shares(results: Results, shape: Shape, markdown: bool) -> str:
    """Each stack's decode as a share of the read rate and its prefill as shares of the peaks, by the ceilings of this run."""
    ceilings = next((s.ceilings for s in results.stacks.values() if any(s.ceilings)), [])
    if not ceilings:
        return ""
    known = next(found for found in ceilings if found)
    # Where a unit has a wider successor, the narrow one is no limit.
    wide = "fp32_avx512" in known
    peaks = [name for name in known if name != "read" and not (wide and name.endswith(("_sse", "_avx2")))]
    rows = [["share of the limit", "decode / read", *(f"prefill / {p}" for p in peaks)]]
    by_name = {stack.name: stack for stack in STACKS}
    measure = {m.name: m for m in MEASURES}
    for name, result in results.stacks.items():
        stack, own = by_name[name], result.ceilings or ceilings
        shares = [share_of_limit(stack, result, measure["decode"], shape, own, "read")]
        shares += [
            share_of_limit(stack, result, measure["prefill_512"], shape, own, p) if p.startswith(stack.activations) else math.nan
            for p in peaks
        ]
        rows.append([name, *("-" if math.isnan(share) else f"{share:.0%}" for share in shares)])
    return _grid(rows, markdown)


def _judged(found: Sequence[Line], markdown: bool) -> str:
    rows = [["promise", "ours", "against", "figure", "ratio (least to most)", "wanted", "met"]]
    for line in found:
        ratio = f"{line.ratio.median:.2f}x ({line.ratio.least:.2f} to {line.ratio.most:.2f})" if line.ratio else ""
        met = "?" if line.met is None else "yes" if line.met else "NO"
        rows.append([line.what, line.ours, line.peer, format_figure(line.value, line.unit), ratio, line.wanted, met])
    return _grid(rows, markdown)


def report(results: Results, shape: Shape, *, markdown: bool = False) -> str:
    """All of it: figures with perplexity beside them, shares of the limits, promises, failures."""
    machine = results.machine
    parts = [
        f"{machine.get('model', '')}, {results.settings['threads']} threads, {results.settings['rounds']} rounds interleaved, "
        f"medians (half of largest less smallest), tokens/s unless said",
        _figures(results, markdown),
        _shares(results, shape, markdown),
        _judged(lines(results, shape), markdown),
        "\n".join(f"{name}: {words}" for name, stack in results.stacks.items() for words in stack.failures),
    ]
    return "\n\n".join(part for part in parts if part)
