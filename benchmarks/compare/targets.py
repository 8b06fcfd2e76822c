"""The figures that mixplan promises, as rows: which measure, against whom, how many times better, which share of the machine's limit."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.compare.results import Ratio, Results, StackResult, ratio_of
from benchmarks.compare.sizes import Shape, step_bytes
from benchmarks.compare.stacks import STACKS, Stack
from benchmarks.compare.workload import MEASURES, Measure

__all__ = ["QUALITY", "ROWS", "Goal", "Line", "Row", "lines", "share_of_limit"]

_MEASURES = {measure.name: measure for measure in MEASURES}
_STACKS = {stack.name: stack for stack in STACKS}
_MB = 1e6


@dataclass(frozen=True)
class Goal:
    """at least `factor` times `peer` in a measure."""

    peer: str
    factor: float


@dataclass(frozen=True)
class Row:
    """One promise. share: of "read" (the read rate at the weights' size) or of a peak such as "int8_vnni", at least `least` of it.

    every: also faster than every other stack in the run. most: for what is bounded by a number instead (seconds, bytes over the weights).
    """

    measure: str
    ours: str
    goals: tuple[Goal, ...] = ()
    share: str = ""
    least: float = 0.0
    every: bool = True
    most: float = math.nan


ROWS = (
    Row("decode", "mixplan W4A8", (Goal("llama.cpp Q4_0", 2.6),), "read", 0.70),
    Row("decode", "mixplan W8A8", (Goal("llama.cpp Q8_0", 1.9),), "read", 0.75, every=False),
    Row("decode_4096", "mixplan W4A8", (Goal("llama.cpp Q4_0", 2.6),)),
    Row("prefill_512", "mixplan W4A8", (Goal("llama.cpp Q4_0", 3.5), Goal("OpenVINO int4", 1.5)), "int8_vnni", 0.60),
    Row("prefill_2048", "mixplan W4A8", (Goal("llama.cpp Q4_0", 4.0), Goal("OpenVINO int4", 1.6))),
    Row("prefill_512", "mixplan BF16", (Goal("llama.cpp bf16", 1.6),), every=False),
    Row("batch_16", "mixplan W4A8", (Goal("OpenVINO int4", 1.7),)),
    Row("batch_32", "mixplan W4A8", (Goal("OpenVINO int4", 2.0),)),
    Row("ttft_128", "mixplan W4A8"),
    Row("cold_start", "mixplan W4A8", most=0.25),
    Row("peak_rss", "mixplan W4A8", every=False, most=70.0),
    Row("overhead", "mixplan W4A8", every=False, most=0.02),
)


QUALITY = (("mixplan W4A8", "llama.cpp Q4_0"),)


@dataclass(frozen=True)
class Line:
    """One comparison as printed. wanted: the factor, share or bound, as text; met: None where it could not be measured."""

    what: str
    ours: str
    peer: str
    ratio: Ratio | None
    value: float
    unit: str
    wanted: str
    met: bool | None


def share_of_limit(
    stack: Stack, result: StackResult, measure: Measure, shape: Shape, ceilings: Sequence[dict[str, float]], of: str
) -> float:
    """The median over rounds of the share of a ceiling that a figure reaches. `of`: "read" or a peak's name. NaN without such a ceiling.

    ceilings: one record a round; mixplan's own come from the process that made the figure.
    """
    shares = []
    for value, found in zip(result.figures.get(measure.name, []), ceilings, strict=False):
        limit = found.get(of, math.nan)
        if math.isnan(value) or math.isnan(limit) or limit <= 0:
            continue
        if of == "read":
            context = measure.tokens + measure.steps // 2
            shares.append(value * step_bytes(stack, shape, context) / 1e9 / limit)
        else:
            shares.append(value * shape.operations_per_token / 1e9 / limit)
    return statistics.median(shares) if shares else math.nan


def _met(value: float, least: float) -> bool | None:
    return None if math.isnan(value) else value >= least


def _peers(row: Row, results: Results, *, more: bool) -> list[tuple[str, float, str]]:
    """The row's peers with the factor wanted; where every peer counts, the best of the others too."""
    have = {n: s.median(row.measure) for n, s in results.stacks.items() if s.family != "mixplan" and s.values(row.measure)}
    found = [(goal.peer, goal.factor, f">= {goal.factor:g}x") for goal in row.goals if goal.peer in have]
    others = {name: value for name, value in have.items() if name not in {goal.peer for goal in row.goals}}
    if row.every and others:
        best = (max if more else min)(others, key=lambda name: others[name])
        found.append((best, 1.0, "> 1x (best other)"))
    return found


def _row_lines(row: Row, results: Results, shape: Shape) -> list[Line]:
    ours = results.stacks.get(row.ours)
    measure = _MEASURES.get(row.measure)
    if ours is None or not ours.values(row.measure):
        return []
    made: list[Line] = []
    title = measure.title if measure else "Python and scheduling in a step"
    unit = measure.unit if measure else "of the step"
    value = ours.median(row.measure)
    more = bool(measure and measure.more_is_better)
    for name, least, text in _peers(row, results, more=more):
        ratio = ratio_of(ours.figures[row.measure], results.stacks[name].figures[row.measure], more_is_better=more)
        made.append(Line(title, row.ours, name, ratio, value, unit, text, _met(ratio.median, least)))
    if row.share and measure:
        share = share_of_limit(_STACKS[row.ours], ours, measure, shape, ours.ceilings, row.share)
        label = "read bandwidth" if row.share == "read" else f"{row.share} peak"
        made.append(Line(title, row.ours, label, None, share, "of limit", f">= {row.least:.0%}", _met(share, row.least)))
    if not math.isnan(row.most):
        if row.measure == "peak_rss":
            over = value - float(ours.facts.get("weights_bytes", math.nan)) / _MB
            made.append(Line(f"{title}, over the weights", row.ours, "", None, over, unit, f"<= {row.most:g} MB", _met(-over, -row.most)))
        else:
            text = f"<= {row.most:g} s" if unit == "s" else f"<= {row.most:.0%}"
            made.append(Line(title, row.ours, "", None, value, unit, text, _met(-value, -row.most)))
    return made


def _quality_lines(results: Results) -> list[Line]:
    """A speed counts only where perplexity is no worse than the peer's of the same width."""
    made = []
    for name, peer in QUALITY:
        if name in results.stacks and peer in results.stacks:
            ours, theirs = results.stacks[name].perplexity, results.stacks[peer].perplexity
            ratio = ratio_of([ours], [theirs], more_is_better=False)
            made.append(Line("perplexity", name, peer, ratio, ours, "", "no worse", _met(ratio.median, 1.0)))
    return made


def lines(results: Results, shape: Shape) -> list[Line]:
    """Every promise that this run can judge."""
    return [*_quality_lines(results), *(line for row in ROWS for line in _row_lines(row, results, shape))]
