"""How busy the cores are while something runs, from /proc, sampled by one thread.

Where this process may use whole cores, the counters are those of the cores in its affinity mask, so that work of other processes shows
too. Where a cgroup gives it a share of more cores than it may use at once, or these counters are not there, they are those of its own
busiest threads.
"""

from __future__ import annotations

import os
import statistics
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from time import monotonic
from types import TracebackType

from mixplan.runtime.devices.cpu_info import allowed_cores

__all__ = ["MIN_INTERVAL", "Utilisation", "UtilisationSampler", "core_seconds", "summarize", "thread_seconds"]

MIN_INTERVAL = 0.1
"""Seconds between samples, at least: the counters move in steps of 10 ms."""

_TICK = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_BUSY_FIELDS = (0, 1, 2, 5, 6)  # user, nice, system, irq, softirq


@dataclass(frozen=True)
class Utilisation:
    """Busy fractions. mean: over cores and samples. variance: of all of them about the mean. by_core: each core's mean, busiest first.

    source: "cores" or "threads". samples: how many there were; 0 where the counters cannot be read, and then the rest is 0.
    """

    source: str
    samples: int
    mean: float
    variance: float
    by_core: tuple[float, ...]


def core_seconds(cores: Sequence[int], stat: Path = Path("/proc/stat")) -> dict[int, float]:
    """Busy seconds of each of `cores` since the system started; {} where they are not told."""
    found = {}
    try:
        lines = stat.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return {}
    wanted = {f"cpu{core}": core for core in cores}
    for line in lines:
        name, *fields = line.split()[:9] or [""]
        if name in wanted and len(fields) >= 7 and all(field.isdigit() for field in fields):
            found[wanted[name]] = sum(int(fields[k]) for k in _BUSY_FIELDS) / _TICK
    return found if len(found) == len(cores) else {}


def thread_seconds(task: Path = Path("/proc/self/task")) -> dict[int, float]:
    """Seconds that each thread of this process ran, by thread id: from schedstat (nanoseconds), or stat (ticks)."""
    found = {}
    try:
        threads = [entry.name for entry in task.iterdir() if entry.name.isdigit()]
    except OSError:
        return {}
    for name in threads:
        try:
            found[int(name)] = int((task / name / "schedstat").read_text(encoding="ascii").split()[0]) / 1e9
        except (OSError, ValueError, IndexError):
            try:
                # The name in parentheses may hold anything.
                fields = (task / name / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
                found[int(name)] = (int(fields[11]) + int(fields[12])) / _TICK
            except (OSError, ValueError, IndexError):
                continue  # the thread has ended
    return found


def summarize(source: str, samples: Sequence[Sequence[float]]) -> Utilisation:
    """`samples`: for each interval, the busy fraction of each core."""
    everything = [min(value, 1.0) for sample in samples for value in sample]
    if not everything:
        return Utilisation(source, 0, 0.0, 0.0, ())
    columns = [statistics.fmean(min(value, 1.0) for value in column) for column in zip(*samples, strict=True)]
    mean = statistics.fmean(everything)
    return Utilisation(source, len(samples), mean, statistics.pvariance(everything, mean), tuple(sorted(columns, reverse=True)))


class UtilisationSampler:
    """A context manager that samples every `interval` seconds; `result` is there afterwards. threads: how many the work runs on."""

    def __init__(self, threads: int, interval: float = 0.2) -> None:
        self.result = Utilisation("none", 0, 0.0, 0.0, ())
        self._threads = threads
        self._interval = max(interval, MIN_INTERVAL)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="utilisation", daemon=True)
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        # A quota below the number of cores shows as idle cores, although no more of them may be had.
        self._whole = bool(cores) and allowed_cores() == len(cores) and bool(core_seconds(cores))
        self._read: Callable[[], dict[int, float]] = (lambda: core_seconds(cores)) if self._whole else thread_seconds
        self._readings: list[tuple[float, dict[int, float]]] = []

    def __enter__(self) -> UtilisationSampler:
        self._take()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
        if len(self._readings) < 2:  # work shorter than an interval
            self._take()
        self.result = self._summary()

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            self._take()

    def _take(self) -> None:
        self._readings.append((monotonic(), self._read()))

    def _summary(self) -> Utilisation:
        names = set.intersection(*(set(reading) for _, reading in self._readings))
        if not self._whole:
            (_, first), (_, last) = self._readings[0], self._readings[-1]
            names = set(sorted(names, key=lambda name: last[name] - first[name], reverse=True)[: self._threads])
        samples = []
        for (before, old), (after, new) in pairwise(self._readings):
            if after > before:
                samples.append([max(0.0, (new[name] - old[name]) / (after - before)) for name in sorted(names)])
        return summarize("cores" if self._whole else "threads", samples if names else [])
