"""Latency percentiles and throughput of served requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

import numpy as np

from mixplan.runtime.bench.serve import Served
from mixplan.runtime.bench.stats import Figure, blocked, percentile, repeated

__all__ = ["latency_figures", "round_figures", "throughput"]

_RANKS = (50, 90, 99)
_UNITS = {"tokens_per_second": "tokens/s", "prompt_tokens_per_second": "tokens/s", "requests_per_second": "requests/s"}


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


def _rank(rank: int) -> Callable[[Sequence[float]], float]:
    return lambda values: percentile(values, rank)


def latency_figures(served: Sequence[Served]) -> dict[str, Figure]:
    """Of one long run: percentiles of time to first token, between tokens and end to end; throughput. Spreads are over parts of it.

    A part's requests are shorter or longer than another's, which is no noise: for the spreads, times are taken relative to what requests of
    such lengths take on average in the whole run.
    """
    figures: dict[str, Figure] = {}
    relative: dict[str, list[float]] = {}
    for name, values in _groups(served).items():
        # Gaps hardly depend on lengths, and are not one for each request.
        relative[name] = _relative(served, values) if name != "itl" else values
        for rank in _RANKS if values else ():
            spread = blocked(relative[name], _rank(rank), "s").spread
            figures[f"{name}_p{rank}"] = Figure(percentile(values, rank), "s", "lower", spread, len(values))
    pace = blocked(relative["e2e"], fmean, "s").spread
    for name, value in throughput(served).items():
        figures[name] = Figure(value, _UNITS[name], "higher", pace, len(served))
    return figures


def _relative(served: Sequence[Served], values: Sequence[float]) -> list[float]:
    """Each request's value over that of a least-squares fit, linear in its prompt's and its answer's length."""
    features = np.array([(1, request.prompt_tokens, len(request.times)) for request in served], np.float64)
    found, *_ = np.linalg.lstsq(features, np.asarray(values), rcond=None)
    # Where lengths explain little, as under load, a fit may come out near 0 or below.
    fitted = np.maximum(features @ found, 0.1 * fmean(values))
    return [float(value) for value in np.asarray(values) / fitted]


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
        figures[name] = repeated([rate[name] for rate in rates], _UNITS[name], "higher")
    return figures
