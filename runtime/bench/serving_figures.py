"""Latency percentiles and throughput of served requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mixplan.runtime.bench.serve import Served
from mixplan.runtime.bench.stats import Figure, blocked, percentile, repeated

__all__ = ["latency_figures", "round_figures", "throughput"]

_RANKS = (50, 90, 99)


def _groups(served: Sequence[Served]) -> dict[str, list[float]]:
    return {
        "ttft": [request.ttft for request in served],
        "itl": [gap for request in served for gap in request.gaps],
        "e2e": [request.total for request in served],
    }


def throughput(served: Sequence[Served]) -> dict[str, float]:
    """New tokens, prompt tokens and requests per second of the whole."""
    seconds = max(request.ended for request in served) - min(request.started for request in served)
    counts = {
        "tokens_per_second": sum(len(request.times) for request in served),
        "prompt_tokens_per_second": sum(request.prompt_tokens for request in served),
        "requests_per_second": len(served),
    }
    return {name: count / seconds if seconds > 0 else 0.0 for name, count in counts.items()}


def _units(name: str) -> tuple[str, str]:
    return name, {"tokens_per_second": "tokens/s", "prompt_tokens_per_second": "tokens/s", "requests_per_second": "requests/s"}[name]


def _rank(rank: int) -> Callable[[Sequence[float]], float]:
    return lambda values: percentile(values, rank)


def latency_figures(served: Sequence[Served]) -> dict[str, Figure]:
    """Of one long run: percentiles of time to first token, between tokens and end to end; throughput. Spreads are over parts of it."""
    figures = {
        f"{name}_p{rank}": blocked(values, _rank(rank), "s") for name, values in _groups(served).items() if values for rank in _RANKS
    }
    size = max(len(served) // 8, 1)
    parts = [throughput(served[at : at + size]) for at in range(0, len(served) - size + 1, size)]
    for name, value in throughput(served).items():
        over_parts = repeated([part[name] for part in parts], _units(name)[1], "higher")
        figures[name] = Figure(value, over_parts.unit, "higher", over_parts.spread, len(served))
    return figures


def round_figures(rounds: Sequence[Sequence[Served]]) -> dict[str, Figure]:
    """Of several rounds of the same requests: the median over rounds of the same figures, and their spread over the rounds."""
    figures: dict[str, Figure] = {}
    groups = [_groups(served) for served in rounds]
    for name in groups[0]:
        if all(group[name] for group in groups):
            for rank in _RANKS:
                figures[f"{name}_p{rank}"] = repeated([percentile(group[name], rank) for group in groups], "s")
    rates = [throughput(served) for served in rounds]
    for name in rates[0]:
        figures[name] = repeated([rate[name] for rate in rates], _units(name)[1], "higher")
    return figures
