"""The report of a benchmark, as data: what `--json` prints and `--baseline` reads."""

from __future__ import annotations

from typing import Any

import msgspec

from mixplan.runtime.bench.stats import Figure

__all__ = ["SCHEMA", "BenchReport", "PhaseReport"]

SCHEMA = "mixplan.bench/1"
"""Raised with every change of what a figure means."""


class PhaseReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One phase: its figures by name, and facts about how it was run."""

    figures: dict[str, Figure]
    facts: dict[str, Any] = {}


class BenchReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """plan: name, digest, sizes. hardware: the fingerprint. phases: cold, steady, stress, as far as run. profile: of profile.py."""

    schema: str
    plan: dict[str, Any]
    hardware: dict[str, Any]
    phases: dict[str, PhaseReport] = {}
    profile: list[dict[str, Any]] = []

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        data: dict[str, Any] = msgspec.to_builtins(self)
        return data
