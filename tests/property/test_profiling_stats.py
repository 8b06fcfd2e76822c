"""Statistics gathered in parts against numpy on the whole."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mixplan.passes.profiling import LONG_RUN, Channels, HeadRanges, LogHistogram, Moments, TensorStats, ZeroRuns, rounding_snr

_values = st.one_of(
    st.just(0.0),
    st.floats(-10, 10, width=32),
    st.floats(-(2.0**40), 2.0**40, width=32),
    st.floats(-(2.0**-40), 2.0**-40, width=32, allow_subnormal=False),
)
_tables = hnp.arrays(np.float32, st.tuples(st.integers(2, 40), st.integers(1, 70)), elements=_values)


def _cut(table: np.ndarray, at: int) -> list[torch.Tensor]:
    where = at % (len(table) + 1)
    return [torch.from_numpy(part.copy()) for part in (table[:where], table[where:])]


def _reference(x: np.ndarray) -> tuple[float, float, float, float]:
    """Mean, variance, skew, excess kurtosis in float64."""
    wide = x.astype(np.float64).ravel()
    mean, variance = wide.mean(), wide.var()
    if variance == 0:
        return float(mean), 0.0, 0.0, 0.0
    unit = (wide - mean) / math.sqrt(variance)
    return float(mean), float(variance), float((unit**3).mean()), float((unit**4).mean() - 3)


@settings(max_examples=150, deadline=None)
@given(_tables, st.integers(0, 100))
def test_moments_in_parts(table: np.ndarray, at: int) -> None:
    """Two parts give numpy's figures of the whole, to what f32 sums keep."""
    first, second = _cut(table, at)
    got = Moments.of(first).merge(Moments.of(second))
    mean, variance, skew, kurtosis = _reference(table)
    scale = float(np.abs(table).max())
    assert got.count == table.size and got.low == table.min() and got.high == table.max()
    assert math.isclose(got.mean, mean, rel_tol=1e-5, abs_tol=2e-6 * scale)
    assert math.isclose(got.variance, variance, rel_tol=1e-4, abs_tol=1e-6 * scale**2)
    # Standardized moments mean nothing where the spread is lost in f32's rounding of the values themselves.
    if variance > 1e-6 * scale**2:
        assert math.isclose(got.skew, skew, rel_tol=1e-2, abs_tol=1e-2)
        assert math.isclose(got.kurtosis, kurtosis, rel_tol=1e-2, abs_tol=1e-2)


@pytest.mark.parametrize("scale", [1e-12, 1e-3, 1.0, 1e5, 1e12])
@pytest.mark.parametrize("shift", [0.0, 3.0, -50.0])
def test_moments_at_any_scale(scale: float, shift: float) -> None:
    """A skewed distribution of a million values keeps its shape wherever it lies."""
    rng = np.random.default_rng(0)
    x = ((rng.gamma(2.0, size=(1000, 1000)) + shift) * scale).astype(np.float32)
    got = Moments()
    for part in np.array_split(x, 7):
        got = got.merge(Moments.of(torch.from_numpy(part.copy())))
    mean, variance, skew, kurtosis = _reference(x)
    np.testing.assert_allclose([got.mean, got.variance], [mean, variance], rtol=1e-4)
    np.testing.assert_allclose([got.skew, got.kurtosis], [skew, kurtosis], rtol=2e-3)


@settings(max_examples=100, deadline=None)
@given(_tables, st.integers(0, 100), st.floats(0, 100))
def test_percentiles_in_parts(table: np.ndarray, at: int, percent: float) -> None:
    """The percentile of a magnitude is inside the bucket of numpy's: off by a 16th at most."""
    first, second = _cut(table, at)
    got = LogHistogram.of(first).merge(LogHistogram.of(second))
    assert got.total == table.size
    sizes = np.sort(np.abs(table).ravel().astype(np.float64))
    rank = percent / 100 * len(sizes)
    wanted = sizes[min(max(math.ceil(rank) - 1, 0), len(sizes) - 1)]
    found = got.percentile(percent)
    assert found == pytest.approx(wanted, rel=1 / 16, abs=2.0**-126)


@settings(max_examples=50, deadline=None)
@given(_tables, st.floats(1e-6, 100))
def test_fraction_below(table: np.ndarray, size: float) -> None:
    """Between the fractions a bucket below and a bucket above."""
    got = LogHistogram.of(torch.from_numpy(table)).fraction_below(size)
    sizes = np.abs(table.astype(np.float64))
    assert (sizes < size * 15 / 16).mean() - 1e-9 <= got <= (sizes < size * 17 / 16).mean() + 1e-9


def test_coarse_histogram_counts_by_sign() -> None:
    got = LogHistogram.of(torch.tensor([0.0, 1.0, 1.2, -1.1, 4.0, -0.0])).coarse(1)
    assert got == [(1.0, 1, 2), (2.0, 0, 0), (4.0, 0, 1)]
    assert LogHistogram.of(torch.zeros(5)).coarse() == [] and math.isnan(LogHistogram().percentile(50))


def _runs(table: np.ndarray) -> tuple[int, int, int]:
    zeros = longest = long = 0
    for row in table:
        run = 0
        for value in [*row, 1.0]:
            if value == 0:
                run += 1
                continue
            zeros, longest, long, run = zeros + run, max(longest, run), long + (run if run > LONG_RUN else 0), 0
    return zeros, longest, long


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 100), st.floats(0, 1))
def test_zero_runs_in_parts(seed: int, at: int, dense: float) -> None:
    """Runs are those that a loop over the rows counts."""
    rng = np.random.default_rng(seed)
    table = (rng.random((12, 90)) < dense**4).astype(np.float32)
    first, second = _cut(table, at)
    got = ZeroRuns.of(first).merge(ZeroRuns.of(second))
    assert (got.zeros, got.longest, got.in_long_runs) == _runs(table) and got.count == table.size


@settings(max_examples=60, deadline=None)
@given(_tables, st.integers(0, 100))
def test_channels_in_parts(table: np.ndarray, at: int) -> None:
    first, second = _cut(table, at)
    got = Channels.of(first).merge(Channels.of(second))
    assert got.absmax.tolist() == np.abs(table).max(0).tolist()
    np.testing.assert_allclose(got.mean_squares.numpy(), (table.astype(np.float64) ** 2).mean(0), rtol=1e-5, atol=1e-30)
    assert got.dead == int((table == 0).all(0).sum())


def test_outlier_channels() -> None:
    """Channels of more than six times the median, largest first."""
    x = torch.ones(10, 20)
    x[3, 7], x[:, 2] = -40.0, 9.0
    got = Channels.of(x)
    assert got.outliers() == [7, 2] and got.ratio == 40.0
    assert Channels.of(torch.zeros(3, 4)).outliers() == []


def test_tensor_of_everything() -> None:
    """Values that are not finite are counted, and spoil no other figure; rows have their own sizes."""
    x = torch.tensor([[1.0, -2.0, 0.0], [float("nan"), float("inf"), 3.0]])
    got = TensorStats.of(x)
    assert got.nonfinite == 2 and got.moments.count == 4 and got.moments.high == 3.0 and got.runs.zeros == 1
    both = got.merge(TensorStats.of(torch.full((2, 2, 3), 0.5)))
    assert both.moments.count == 16 and both.row_sizes.total == 6 and both.channels is not None and both.channels.rows == 6
    assert TensorStats.of(torch.zeros(0, 3)).merge(got).moments == got.moments
    huge = TensorStats.of(torch.full((4, 4), 3e38))  # whose sum is not finite, though it is
    assert huge.nonfinite == 0 and huge.moments.absmax == pytest.approx(3e38)


def test_heads_against_numpy() -> None:
    """Ranges per head, of pairs that attend alone, in two parts, with a window, a cap and slopes."""
    rng = np.random.default_rng(3)
    lengths = (9, 5)
    q, k, v = (rng.normal(size=(14, heads, size)).astype(np.float32) for heads, size in ((4, 8), (2, 8), (2, 6)))
    slopes = torch.tensor([0.0, 0.5, 0.0, 0.25])

    def part(start: int, stop: int, size: int) -> HeadRanges:
        given = [torch.from_numpy(x[start:stop].copy()) for x in (q, k, v)]
        return HeadRanges.of((size,), *given, scale=0.3, window=4, softcap=2.0, slopes=slopes)

    got = part(0, 9, 9).merge(part(9, 14, 5))
    low, high, inside = np.full(4, np.inf), np.full(4, -np.inf), np.full(4, -np.inf)
    spans: list[list[float]] = [[] for _ in range(4)]
    for start, length in zip((0, 9), lengths, strict=True):
        for head in range(4):
            raw = q[start : start + length, head] @ k[start : start + length, head // 2].T
            for row in range(length):
                keys = range(max(0, row - 3), row + 1)
                kept = raw[row, list(keys)]
                low[head], high[head] = min(low[head], kept.min()), max(high[head], kept.max())
                cooked = np.tanh(kept * 0.3 / 2) * 2 + float(slopes[head]) * (np.array(keys) - row)
                inside[head] = max(inside[head], cooked.max())
                spans[head].append(float(cooked.max() - cooked.min()))
    np.testing.assert_allclose(got.score_low.numpy(), low, rtol=1e-5)
    np.testing.assert_allclose(got.score_high.numpy(), high, rtol=1e-5)
    np.testing.assert_allclose(got.input_high.numpy(), inside, rtol=1e-5)
    np.testing.assert_allclose(got.span.numpy(), [max(s) for s in spans], rtol=1e-4)
    np.testing.assert_allclose(got.mean_span.numpy(), [np.mean(s) for s in spans], rtol=1e-4)
    np.testing.assert_allclose(got.q.absmax.numpy(), np.abs(q).max((0, 2)), rtol=1e-6)
    np.testing.assert_allclose(got.v.rms.numpy(), np.sqrt((v.astype(np.float64) ** 2).mean((0, 2))), rtol=1e-5)


def test_rounding_snr() -> None:
    """A single large value drowns the rest of the tensor, then of its row, then of its group only."""
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(64, 128)).astype(np.float32))
    plain = rounding_snr(x)
    assert 38 < plain["tensor"] < plain["token"] < plain["group"] < 50
    x[0, 0] = 1000.0
    spoiled = rounding_snr(x)
    assert spoiled["tensor"] < spoiled["token"] < spoiled["group"]
    assert math.isnan(rounding_snr(torch.zeros(2, 32))["token"]) and rounding_snr(torch.full((2, 32), 127.0))["token"] == math.inf
