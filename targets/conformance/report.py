"""The results of a conformance run, op by op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mixplan.targets.conformance.run import CaseResult

__all__ = ["OpReport", "render", "summarize", "to_json"]

_SHOWN = 3  # reasons an op, in the table


@dataclass(frozen=True)
class OpReport:
    """One op. worst: of the cases that ran, the largest share of its tolerance that an element took; above 1 is a failure.

    reasons: why cases are not supported or failed, each once.
    """

    op: str
    cases: int
    passed: int
    failed: int
    refused: int
    worst: float
    error: float
    reasons: tuple[str, ...]


def summarize(results: Sequence[CaseResult]) -> list[OpReport]:
    """One report an op, in the order of the results."""
    reports = []
    for op in dict.fromkeys(result.op for result in results):
        mine = [result for result in results if result.op == op]
        count = {status: sum(result.status == status for result in mine) for status in ("passed", "failed", "refused")}
        why: dict[str, list[str]] = {}
        for result in mine:
            if result.reason:
                why.setdefault(result.reason, []).append(result.label)
        failed = {result.reason for result in mine if result.status == "failed"}
        reports.append(
            OpReport(
                op,
                len(mine),
                count["passed"],
                count["failed"],
                count["refused"],
                max(result.ratio for result in mine),
                max(result.error for result in mine),
                # Of a failure it matters which case it was.
                tuple(f"{reason} ({'; '.join(labels)})" if reason in failed else reason for reason, labels in why.items()),
            )
        )
    return reports


def to_json(name: str, results: Sequence[CaseResult]) -> dict[str, Any]:
    """`target`, totals, `ops` (a list of OpReport) and `results` (a list of CaseResult), as plain data. Infinite errors are null."""
    reports = summarize(results)
    totals = {key: sum(getattr(report, key) for report in reports) for key in ("cases", "passed", "failed", "refused")}
    return {"target": name, **totals, "ops": [_plain(asdict(r)) for r in reports], "results": [_plain(asdict(r)) for r in results]}


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {key: None if isinstance(value, float) and value == float("inf") else value for key, value in row.items()}


def render(name: str, results: Sequence[CaseResult], make_table: Callable[..., Any]) -> list[Any]:
    """A table of ops, and one line for all of them."""
    reports = summarize(results)
    table = make_table(f"Conformance of {name}", "op", "cases:r", "passed:r", "failed:r", "not supported:r", "worst / allowed:r", "reason")
    for report in reports:
        counts = (report.cases, report.passed, report.failed, report.refused)
        worst = f"{report.worst:.2g}" if report.passed + report.failed else ""
        table.add_row(report.op, *(str(count) if count else "" for count in counts), worst, _few(report.reasons))
    passed, failed, refused = (sum(getattr(report, key) for report in reports) for key in ("passed", "failed", "refused"))
    return [table, f"\n{len(results)} cases: {passed} passed, {failed} failed, {refused} not supported."]


def _few(reasons: Sequence[str]) -> str:
    rest = len(reasons) - _SHOWN
    return "; ".join(reasons[:_SHOWN]) + (f"; and {rest} more, see --json" if rest > 0 else "")
