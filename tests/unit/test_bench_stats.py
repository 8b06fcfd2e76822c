"""Percentiles, spreads, and figures of served requests."""

from __future__ import annotations

import numpy as np
import pytest

from mixplan.runtime.bench.serve import Served
from mixplan.runtime.bench.serving_figures import latency_figures, round_figures, throughput
from mixplan.runtime.bench.stats import blocked, percentile, repeated, spread


@pytest.mark.parametrize("rank", [0, 50, 90, 99, 100])
def test_percentiles_are_numpys(rank: float) -> None:
    values = np.random.default_rng(0).random(37).tolist()
    assert percentile(values, rank) == pytest.approx(np.percentile(values, rank))


def test_the_percentile_of_one_value() -> None:
    assert percentile([3.0], 99) == 3.0


def test_spread_is_robust() -> None:
    values = np.random.default_rng(0).normal(10, 1, 2000).tolist()
    assert spread(values) == pytest.approx(0.1, rel=0.1)
    assert spread([10, 10, 10, 1000]) == 0
    assert spread([1, 2]) is None and spread([0, 0, 0]) is None


def test_a_repeated_figure_is_the_median() -> None:
    figure = repeated([3, 1, 2], "s")
    assert (figure.value, figure.count, figure.better) == (2, 3, "lower")


def test_the_spread_of_blocks_is_over_time() -> None:
    steady = blocked([1.0, 2.0] * 40, max, "s")
    drifting = blocked([float(k) for k in range(1, 81)], max, "s")
    assert steady.value == 2 and steady.spread == 0
    assert drifting.spread is not None and drifting.spread > 0.3
    assert blocked([1.0] * 9, max, "s").spread is None


def _served(*requests: tuple[float, tuple[float, ...]]) -> list[Served]:
    return [Served(10, times, start, start + times[-1]) for start, times in requests]


def test_latencies_and_throughput() -> None:
    served = _served((0.0, (1.0, 1.5, 2.0)), (2.0, (1.0, 1.5, 3.0)))
    figures = latency_figures(served)
    assert figures["ttft_p50"].value == 1.0
    assert figures["itl_p50"].value == 0.5 and figures["itl_p99"].value == pytest.approx(1.5, abs=0.05)
    assert figures["e2e_p50"].value == 2.5
    assert throughput(served) == {
        "tokens_per_second": pytest.approx(6 / 5),
        "prompt_tokens_per_second": pytest.approx(20 / 5),
        "requests_per_second": pytest.approx(2 / 5),
    }
    assert figures["tokens_per_second"].better == "higher"


def test_lengths_are_no_noise_but_drift_is() -> None:
    sizes = np.random.default_rng(0).integers(1, 100, 80).tolist()
    for drift, least, most in ((0.0, 0.0, 0.001), (0.01, 0.1, 0.5)):
        served, at = [], 0.0
        for number, size in enumerate(sizes):
            first = 0.1 * size * (1 + drift * number)
            served.append(Served(size, (first, first + 1.0 + drift * number), at, at + first + 1.0))
            at += first + 1.0
        figures = latency_figures(served)
        for name in ("ttft_p50", "e2e_p50", "tokens_per_second"):
            spread_of = figures[name].spread
            assert spread_of is not None and least <= spread_of <= most, (name, spread_of)


def test_answers_of_one_token_have_no_gaps() -> None:
    assert "itl_p50" not in latency_figures(_served((0.0, (1.0,)), (1.0, (1.0,))))


def test_rounds_give_medians_of_their_percentiles() -> None:
    rounds = [_served((0.0, (first, first + 1.0))) for first in (1.0, 3.0, 2.0)]
    assert round_figures(rounds)["ttft_p99"].value == 2.0
    assert round_figures(rounds)["requests_per_second"].value == pytest.approx(1 / 3)
