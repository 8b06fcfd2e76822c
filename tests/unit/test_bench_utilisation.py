"""Core utilisation from the files of /proc, real ones and made ones."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from time import monotonic

import pytest

from mixplan.runtime.bench import utilisation
from mixplan.runtime.bench.utilisation import UtilisationSampler, core_seconds, summarize, thread_seconds

_STAT = "cpu  9 9 9 9 9 9 9 0 0 0\ncpu0 100 20 30 1000 5 6 4 7 0 0\ncpu3 200 0 0 0 0 0 0 0 0 0\nintr 1\n"


def test_busy_seconds_of_cores(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text(_STAT, encoding="ascii")
    tick = os.sysconf("SC_CLK_TCK")
    assert core_seconds([0, 3], tmp_path / "stat") == {0: 160 / tick, 3: 200 / tick}
    assert core_seconds([0, 1], tmp_path / "stat") == {}  # one is not told
    assert core_seconds([0], tmp_path / "none") == {}


def test_seconds_of_threads(tmp_path: Path) -> None:
    for thread, files in {"1": {"schedstat": "2500000000 1 1"}, "2": {"stat": "2 (a) b) S " + "0 " * 10 + "30 20 0"}, "x": {}}.items():
        (tmp_path / thread).mkdir()
        for name, text in files.items():
            (tmp_path / thread / name).write_text(text, encoding="ascii")
    assert thread_seconds(tmp_path) == {1: 2.5, 2: 50 / os.sysconf("SC_CLK_TCK")}
    assert thread_seconds(tmp_path / "none") == {}
    assert threading.get_native_id() in thread_seconds()


def test_summary() -> None:
    found = summarize("cores", [[1.0, 0.0], [1.2, 0.5]])  # a counter may run ahead of the clock
    assert (found.samples, found.mean, found.by_core) == (2, 0.625, (1.0, 0.25))
    assert found.variance == pytest.approx(((0.375) ** 2 * 2 + 0.625**2 + 0.125**2) / 4)
    assert summarize("cores", []).samples == 0


@pytest.mark.parametrize("whole", [True, False])
def test_a_busy_thread_shows(whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not whole:  # as in a cgroup that gives less than a core of those in the affinity mask
        monkeypatch.setattr(utilisation, "allowed_cores", lambda: len(os.sched_getaffinity(0)) + 1)
    with UtilisationSampler(threads=1, interval=0.0) as sampler:
        started = monotonic()
        while monotonic() - started < 0.35:
            pass
    assert sampler.result.samples >= 2
    assert sampler.result.by_core[0] > 0.3
    assert sampler.result.source == ("cores" if whole else "threads")


def test_work_shorter_than_an_interval_is_one_sample() -> None:
    with UtilisationSampler(threads=1) as sampler:
        pass
    assert sampler.result.samples <= 1
