"""Comparing with an earlier report: what is a change, what is noise, what may not be compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mixplan.runtime.bench.baseline import compare, read_baseline
from mixplan.runtime.bench.report import SCHEMA, BenchReport, PhaseReport
from mixplan.runtime.bench.stats import Better, Figure
from mixplan.runtime.errors import OptionError


def _report(value: float, spread: float | None = 0.0, better: Better = "lower", **changed: Any) -> BenchReport:
    hardware = {"model": "Any CPU", "cores": 2, "caches": ({"level": 1},)} | changed.get("hardware", {})
    facts = {"workload": {"digest": changed.get("workload", "w")}}
    figures = {changed.get("name", "ttft_p50"): Figure(value, changed.get("unit", "s"), better, spread, 9)}
    return BenchReport(SCHEMA, {"digest": changed.get("plan", "d"), "name": "p"}, hardware, {"steady": PhaseReport(figures, facts)})


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        (_report(1.09), _report(1.0), "same"),
        (_report(1.11), _report(1.0), "worse"),
        (_report(0.9), _report(1.0), "better"),
        (_report(1.11, better="higher"), _report(1.0, better="higher"), "better"),
        (_report(0.9, better="higher"), _report(1.0, better="higher"), "worse"),
        # Sizes in memory hardly move.
        (_report(1.04, unit="bytes"), _report(1.0, unit="bytes"), "worse"),
        (_report(1.02, unit="bytes"), _report(1.0, unit="bytes"), "same"),
        # Twice the spreads of both runs, taken together.
        (_report(1.25, 0.1), _report(1.0, 0.1), "same"),
        (_report(1.3, 0.1), _report(1.0, 0.1), "worse"),
        # Unknown spreads are taken for 5% each.
        (_report(1.13, None), _report(1.0, None), "same"),
        (_report(1.15, None), _report(1.0, None), "worse"),
    ],
)
def test_a_change_counts_beyond_noise(ours: BenchReport, theirs: BenchReport, verdict: str) -> None:
    (change,) = compare(ours, theirs).changes
    assert change.verdict == verdict
    assert change.ratio == pytest.approx(ours.phases["steady"].figures["ttft_p50"].value)
    assert len(compare(ours, theirs).regressions) == (verdict == "worse")


def test_figures_of_one_report_only_are_named() -> None:
    comparison = compare(_report(1.0), _report(1.0, name="ttft_p90"))
    assert comparison.changes == () and comparison.unmatched == ("steady.ttft_p50", "steady.ttft_p90")


def test_warnings() -> None:
    ours = _report(1.0)
    assert compare(ours, _report(1.0)).warnings == ()
    (other,) = compare(ours, _report(1.0, hardware={"model": "Another CPU"})).warnings
    assert "model: Another CPU there, Any CPU here" in other
    assert "another plan" in compare(ours, _report(1.0, plan="e")).warnings[0]
    assert "other requests in phase steady" in compare(ours, _report(1.0, workload="x")).warnings[0]


def test_a_report_read_back_is_the_same(tmp_path: Path) -> None:
    report, path = _report(1.0), tmp_path / "report.json"
    path.write_text(json.dumps(report.to_dict() | {"comparison": {"changes": []}}), encoding="utf-8")
    comparison = compare(report, read_baseline(path))
    assert comparison.warnings == () and comparison.changes[0].ratio == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not JSON"),
        ("[]", "has schema None; this version compares 'mixplan.bench/1'"),
        ('{"schema": "mixplan.bench/0"}', "has schema 'mixplan.bench/0'"),
        ('{"schema": "mixplan.bench/1", "plan": 5}', "is not a report of mixplan bench"),
        ('{"schema": "mixplan.bench/1", "plan": {}, "hardware": {}, "other": 1}', "is not a report of mixplan bench.*other"),
    ],
)
def test_what_is_no_baseline(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "b.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(OptionError, match=words):
        read_baseline(path)


def test_no_baseline_at_all(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cannot be read"):
        read_baseline(tmp_path / "none.json")
