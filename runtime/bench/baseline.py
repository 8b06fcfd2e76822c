"""Compares a report with an earlier one, and tells a change from noise."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from mixplan.runtime.bench.fingerprint import differences
from mixplan.runtime.bench.report import SCHEMA, BenchReport
from mixplan.runtime.bench.stats import Figure
from mixplan.runtime.errors import OptionError

__all__ = ["Change", "Comparison", "compare", "read_baseline"]

# Times of two launches of one program differ by this much, whatever one launch shows of itself: page placement, clocks, neighbours.
_LEAST_NOISE = 0.1
# Sizes do not.
_LEAST_NOISE_OF_BYTES = 0.03
# Standard deviations of the difference beyond which it is taken for a change.
_SIGMAS = 2.0
# Where a figure has no spread: taken for as noisy as this.
_UNKNOWN_SPREAD = 0.05


@dataclass(frozen=True)
class Change:
    """One figure of both reports. ratio: ours over theirs. noise: how far from 1 it may be by chance. verdict: better, worse or "same"."""

    phase: str
    name: str
    ours: Figure
    theirs: Figure
    ratio: float
    noise: float
    verdict: str


@dataclass(frozen=True)
class Comparison:
    """Figures that both have, what speaks against comparing them, and the figures that only one has."""

    changes: tuple[Change, ...]
    warnings: tuple[str, ...]
    unmatched: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        changes = [
            {
                "figure": f"{change.phase}.{change.name}",
                "value": change.ours.value,
                "baseline": change.theirs.value,
                "ratio": change.ratio,
                "noise": change.noise,
                "verdict": change.verdict,
            }
            for change in self.changes
        ]
        return {
            "changes": changes,
            "regressions": [change["figure"] for change in changes if change["verdict"] == "worse"],
            "warnings": list(self.warnings),
            "unmatched": list(self.unmatched),
        }

    @property
    def regressions(self) -> tuple[Change, ...]:
        """The figures that are worse, beyond noise."""
        return tuple(change for change in self.changes if change.verdict == "worse")


def read_baseline(path: Path) -> BenchReport:
    """A report that `mixplan bench --json` printed. OptionError for any other file, and for a report of another schema."""
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise OptionError(f"The baseline {path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise OptionError(f"The baseline {path} is not JSON: {error}.", hint="Make it with: mixplan bench PLAN --json > FILE") from error
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA:
        raise OptionError(
            f"The baseline {path} has schema {schema!r}; this version compares {SCHEMA!r}.",
            hint="Make it anew with this version: mixplan bench PLAN --json > FILE",
        )
    # What `--baseline --json` added is not part of a report.
    data.pop("comparison", None)
    try:
        return msgspec.convert(data, BenchReport)
    except msgspec.ValidationError as error:
        raise OptionError(f"The baseline {path} is not a report of mixplan bench: {error}.") from error


def compare(ours: BenchReport, theirs: BenchReport) -> Comparison:
    """All figures of both. A change counts beyond 10% (3% of sizes), and beyond twice the spread that the runs show."""
    changes, unmatched = [], []
    for phase in sorted({*ours.phases, *theirs.phases}, key=_order):
        mine, other = (report.phases[phase].figures if phase in report.phases else {} for report in (ours, theirs))
        for name in [*mine, *(name for name in other if name not in mine)]:
            if name in mine and name in other and mine[name].value > 0 and other[name].value > 0:
                changes.append(_change(phase, name, mine[name], other[name]))
            else:
                unmatched.append(f"{phase}.{name}")
    return Comparison(tuple(changes), tuple(_warnings(ours, theirs)), tuple(unmatched))


def _order(phase: str) -> tuple[int, str]:
    known = ("cold", "steady", "stress")
    return (known.index(phase) if phase in known else len(known), phase)


def _change(phase: str, name: str, ours: Figure, theirs: Figure) -> Change:
    ratio = ours.value / theirs.value
    spreads = [_UNKNOWN_SPREAD if figure.spread is None else figure.spread for figure in (ours, theirs)]
    least = _LEAST_NOISE_OF_BYTES if ours.unit == "bytes" else _LEAST_NOISE
    noise = max(least, _SIGMAS * math.hypot(*spreads))
    # A ratio of 2 is as far from 1 as one of 1/2.
    worsening = ratio if ours.better == "lower" else 1 / ratio
    verdict = "worse" if worsening > 1 + noise else "better" if 1 / worsening > 1 + noise else "same"
    return Change(phase, name, ours, theirs, ratio, noise, verdict)


def _warnings(ours: BenchReport, theirs: BenchReport) -> list[str]:
    warnings = [f"The baseline ran elsewhere, or otherwise: {difference}." for difference in differences(ours.hardware, theirs.hardware)]
    if ours.plan.get("digest") != theirs.plan.get("digest"):
        warnings.append(f"The baseline is of another plan: {theirs.plan.get('name')}, {theirs.plan.get('scheme')}.")
    for phase in ours.phases:
        if phase in theirs.phases:
            mine, other = (report.phases[phase].facts.get("workload", {}) for report in (ours, theirs))
            if mine.get("digest") != other.get("digest"):
                warnings.append(f"The baseline had other requests in phase {phase}.")
    return warnings
