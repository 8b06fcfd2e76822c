"""Runs requests against a loaded model and keeps when each token came."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from mixplan.runtime.bench.workload import BenchRequest
from mixplan.runtime.generate import ActiveRequest, Chunk
from mixplan.runtime.model import Model
from mixplan.runtime.sampling import SamplingParams
from mixplan.runtime.scheduler import Scheduler

__all__ = ["Served", "serve"]

# A sleep is cut short by this much, since the system's timers are late more often than early.
_WAKE_EARLY = 0.0005


@dataclass(frozen=True)
class Served:
    """times: seconds from the request's arrival to each of its tokens; tokens that came together share the time since the one before.

    started, ended: seconds after the serving began.
    """

    prompt_tokens: int
    times: tuple[float, ...]
    started: float
    ended: float

    @property
    def ttft(self) -> float:
        """Seconds to the first token."""
        return self.times[0]

    @property
    def total(self) -> float:
        """Seconds to the last token."""
        return self.times[-1]

    @property
    def gaps(self) -> list[float]:
        """Seconds between tokens."""
        return [after - before for before, after in pairwise(self.times)]


def serve(
    model: Model,
    requests: Sequence[BenchRequest],
    *,
    in_flight: int,
    prefill_tokens: int | None = None,
    progress: Callable[[float], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Served]:
    """Serve all requests, greedily, to their max_tokens.

    Requests with an arrival come when it says, and their times count from then, however late they are begun. The others come as soon as
    fewer than `in_flight` are there.
    """
    params: dict[int, SamplingParams] = {}

    def make(index: int, request: BenchRequest) -> ActiveRequest:
        chosen = params.setdefault(request.max_tokens, SamplingParams(temperature=0.0, max_tokens=request.max_tokens, ignore_eos=True))
        return ActiveRequest(model, index, request.token_ids, chosen, False)

    # Made beforehand, so that a wrong one is refused before the clock runs.
    coming = deque(make(index, request) for index, request in enumerate(requests))
    arrivals = [request.arrival for request in requests]
    times: list[list[float]] = [[] for _ in requests]
    arrived = [0.0] * len(requests)
    scheduler: Scheduler[Chunk] = Scheduler(model, prefill_tokens=prefill_tokens, clock=clock)
    begun, done = clock(), 0
    try:
        while coming or scheduler.busy:
            now = clock()
            while coming and _due(arrivals[coming[0].index], now - begun, scheduler.running + scheduler.waiting, in_flight):
                request = coming.popleft()
                at = arrivals[request.index]
                request.arrived = now if at is None else begun + at
                arrived[request.index] = request.arrived - begun
                scheduler.add(request)
            if not scheduler.busy:
                sleep(max(0.0, (arrivals[coming[0].index] or 0.0) - (now - begun) - _WAKE_EARLY))
                continue
            came: dict[int, list[Chunk]] = {}
            for chunk in scheduler.step():
                came.setdefault(chunk.index, []).append(chunk)
                done += chunk.finish_reason is not None
            for index, chunks in came.items():
                times[index] += _shared(times[index][-1] if times[index] else chunks[0].elapsed, chunks[-1].elapsed, len(chunks))
            if progress is not None:
                progress(done / len(requests))
    finally:
        scheduler.close()
    return [
        Served(len(request.token_ids), tuple(of), start, start + of[-1])
        for request, of, start in zip(requests, times, arrived, strict=True)
    ]


def _shared(before: float, now: float, count: int) -> list[float]:
    """Times of `count` tokens that came together: each took its share of the time since the one before."""
    return [before + (now - before) * (k + 1) / count for k in range(count)]


def _due(arrival: float | None, now: float, there: int, in_flight: int) -> bool:
    return there < in_flight if arrival is None else arrival <= now
