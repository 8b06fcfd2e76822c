"""What a run found, round by round, and the arithmetic on it: medians, spread, ratios of interleaved launches, perplexity."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Ratio", "Results", "StackResult", "perplexity", "ratio_of"]


@dataclass
class StackResult:
    """One stack. figures: measure -> one value a round (NaN where that launch failed). failures: what went wrong, in words.

    settings: measure -> what was best for it in the first round. ceilings: of mixplan's launches, one record a round, from the same
    process: read rate at the weights' size (GB/s) and peaks (GOP/s).
    """

    name: str
    family: str
    width: int
    figures: dict[str, list[float]] = field(default_factory=dict)
    perplexity: float = math.nan
    facts: dict[str, Any] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    ceilings: list[dict[str, float]] = field(default_factory=list)

    def median(self, measure: str) -> float:
        """Over the rounds that gave a value; NaN without any."""
        values = self.values(measure)
        return statistics.median(values) if values else math.nan

    def values(self, measure: str) -> list[float]:
        """The rounds that gave a value."""
        return [value for value in self.figures.get(measure, []) if not math.isnan(value)]

    def spread(self, measure: str) -> float:
        """(largest - smallest) / median, NaN without values."""
        values = self.values(measure)
        return (max(values) - min(values)) / statistics.median(values) if values else math.nan


@dataclass
class Results:
    """A whole run; `to_json` is what --json prints."""

    machine: dict[str, Any]
    settings: dict[str, Any]
    stacks: dict[str, StackResult] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain values; a figure that is missing is null."""
        plain: dict[str, Any] = _without_nan({**asdict(self), "stacks": {name: asdict(s) for name, s in self.stacks.items()}})
        return plain

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Results:
        """The reverse of to_json."""
        made = cls(data["machine"], data["settings"])
        for name, stack in data["stacks"].items():
            figures = {m: [math.nan if v is None else v for v in values] for m, values in stack["figures"].items()}
            quality = math.nan if stack["perplexity"] is None else stack["perplexity"]
            made.stacks[name] = StackResult(**{**stack, "figures": figures, "perplexity": quality})
        return made


@dataclass(frozen=True)
class Ratio:
    """How many times better ours is, the median over rounds of the ratio within a round, and its least and largest."""

    median: float
    least: float
    most: float


def ratio_of(ours: Sequence[float], theirs: Sequence[float], *, more_is_better: bool) -> Ratio:
    """Round by round; a round where either failed does not count. Of times and bytes, the ratio is theirs by ours."""
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=False) if a > 0 and b > 0]  # false for NaN
    if not pairs:
        return Ratio(math.nan, math.nan, math.nan)
    ratios = [a / b if more_is_better else b / a for a, b in pairs]
    return Ratio(statistics.median(ratios), min(ratios), max(ratios))


def perplexity(losses: Sequence[float], tokens: Sequence[int]) -> float:
    """exp of the mean negative log-likelihood of all predicted tokens."""
    return math.exp(sum(losses) / sum(tokens)) if sum(tokens) else math.nan


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
