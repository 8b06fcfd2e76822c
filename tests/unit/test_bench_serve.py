"""Serving a workload: arrivals, requests in flight, and what the times count from."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from mixplan.runtime import load
from mixplan.runtime.bench.serve import serve
from mixplan.runtime.bench.workload import BenchRequest, Lengths, from_vocabulary
from mixplan.runtime.errors import OptionError, RequestError


def test_all_tokens_come(tiny_llama_plan: Path) -> None:
    with load(tiny_llama_plan, device="null", max_sequences=3) as model:
        served = serve(model, [BenchRequest((1, 2, 3), n) for n in (1, 4, 2, 5)], in_flight=3)
        assert model.metrics().sequences == 0
    assert [len(request.times) for request in served] == [1, 4, 2, 5]
    assert all(request.times == tuple(sorted(request.times)) and request.prompt_tokens == 3 for request in served)
    assert len(served[1].gaps) == 3


def test_one_at_a_time_begins_when_the_one_before_ends(tiny_llama_plan: Path) -> None:
    with load(tiny_llama_plan, device="null") as model:
        served = serve(model, [BenchRequest((1,), 3)] * 3, in_flight=1)
    assert all(after.started >= before.ended for before, after in pairwise(served))


def test_arrivals_are_kept_and_times_count_from_them(tiny_llama_plan: Path) -> None:
    clock, slept = [0.0], []

    def tick() -> float:
        clock[0] += 0.001
        return clock[0]

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock[0] += seconds

    requests = [BenchRequest((1,), 2, at) for at in (0.0, 0.5, 0.5)]
    with load(tiny_llama_plan, device="null") as model:
        served = serve(model, requests, in_flight=1, clock=tick, sleep=sleep)
    assert [request.started for request in served] == pytest.approx([0.0, 0.5, 0.5])
    assert sum(slept) == pytest.approx(0.5, abs=0.05)
    assert all(0 < request.ttft < 0.05 for request in served)


def test_a_request_that_does_not_fit_is_refused_first(tiny_llama_plan: Path) -> None:
    with load(tiny_llama_plan, device="null", kv_tokens=32) as model, pytest.raises(RequestError, match="number 1"):
        serve(model, [BenchRequest((1,), 2), BenchRequest((1,) * 40, 2)], in_flight=1)


def test_lengths_are_drawn_over_the_whole_range(tiny_llama_plan: Path) -> None:
    with load(tiny_llama_plan, device="null") as model:
        work = from_vocabulary(model, 2000, Lengths((4, 64), (1, 3)), seed=0, limit=128)
    sizes = [len(request.token_ids) for request in work.requests]
    assert (min(sizes), max(sizes)) == (4, 64)
    assert {request.max_tokens for request in work.requests} == {1, 2, 3}
    # Every doubling is as likely as another.
    assert sum(size < 16 for size in sizes) / len(sizes) == pytest.approx(0.5, abs=0.05)


def test_lengths_are_cut_to_what_the_plan_holds() -> None:
    assert Lengths((16, 256), (8, 32)).fitting(40) == Lengths((16, 20), (8, 20))
    assert Lengths((16, 256), (8, 32)).fitting(4) == Lengths((2, 2), (2, 2))
    with pytest.raises(OptionError, match="5:4"):
        Lengths((5, 4))
