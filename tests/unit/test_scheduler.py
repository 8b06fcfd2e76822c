"""Which tokens of which requests go into a step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mixplan.runtime.errors import OptionError
from mixplan.runtime.hal import CacheSpec
from mixplan.runtime.sampling import Sampler, SamplingParams
from mixplan.runtime.scheduler import Scheduler


@dataclass
class Tracing:
    """A model that keeps the sequences of each step, and which were freed."""

    max_step_tokens: int = 32
    caches: CacheSpec = field(default_factory=lambda: CacheSpec(pages=100, page_size=8, max_sequences=8, max_pages_per_sequence=100))
    steps: list[list[int]] = field(default_factory=list)
    freed: list[int] = field(default_factory=list)

    def step(self, token_ids: Any, positions: Any, sequences: Any, logits: Any = "last") -> NDArray[np.float32]:
        self.steps.append(list(sequences))
        return np.zeros((0 if isinstance(logits, str) else len(logits), 4), np.float32)

    def free(self, sequence: int) -> None:
        self.freed.append(sequence)

    def counts(self) -> list[dict[int, int]]:
        return [{sequence: step.count(sequence) for sequence in sorted(set(step))} for step in self.steps]


class Request:
    """Ends after `tokens` new tokens."""

    def __init__(self, sequence: int, prompt: int, tokens: int, pages: int = 1, arrived: float = 0.0) -> None:
        self.sequence, self.pages, self.arrived, self.limit = sequence, pages, arrived, tokens
        self.prompt = [1] * prompt
        self.cached, self.token, self.count = 0, -1, 0
        self.sampler = Sampler(SamplingParams(), [])

    @property
    def pending(self) -> int:
        return max(0, len(self.prompt) - self.cached)

    @property
    def done(self) -> bool:
        return self.count >= self.limit

    def accept(self, token: int, elapsed: float) -> tuple[int, float]:
        self.token = token
        self.count += 1
        return self.sequence, elapsed


def _drain(scheduler: Scheduler[Any]) -> None:
    while scheduler.busy:
        scheduler.step()


def test_a_prompt_alone_fills_the_step() -> None:
    model = Tracing()
    scheduler: Scheduler[Any] = Scheduler(model, prefill_tokens=4)
    scheduler.add(Request(0, prompt=70, tokens=1))
    _drain(scheduler)
    assert model.counts() == [{0: 32}, {0: 32}, {0: 6}]


def test_prompts_get_their_share_while_others_decode() -> None:
    model = Tracing()
    scheduler: Scheduler[Any] = Scheduler(model, prefill_tokens=4)
    scheduler.add(Request(0, prompt=2, tokens=4))
    scheduler.step()
    scheduler.add(Request(1, prompt=6, tokens=1))
    scheduler.add(Request(2, prompt=3, tokens=1))
    _drain(scheduler)
    assert model.counts() == [{0: 2}, {0: 1, 1: 4}, {0: 1, 1: 2, 2: 2}, {0: 1, 2: 1}]
    assert model.freed == [1, 0, 2]


def test_decoding_leaves_room_for_no_more_than_the_step_holds() -> None:
    model = Tracing(max_step_tokens=3)
    scheduler: Scheduler[Any] = Scheduler(model)
    for sequence in range(4):
        scheduler.add(Request(sequence, prompt=2, tokens=2))
    _drain(scheduler)
    assert max(len(step) for step in model.steps) <= 3
    assert sorted(model.freed) == [0, 1, 2, 3]


def test_a_request_waits_for_the_pages_it_needs_until_its_end() -> None:
    model = Tracing(caches=CacheSpec(pages=10, page_size=8, max_sequences=8, max_pages_per_sequence=10))
    scheduler: Scheduler[Any] = Scheduler(model)
    for sequence, pages in enumerate((6, 6, 2)):
        scheduler.add(Request(sequence, prompt=1, tokens=2, pages=pages))
    scheduler.step()
    # First come, first served: the third would fit, but does not pass the second.
    assert (scheduler.running, scheduler.waiting) == (1, 2)
    _drain(scheduler)
    assert model.counts() == [{0: 1}, {0: 1}, {1: 1, 2: 1}, {1: 1, 2: 1}]


def test_one_alone_runs_whatever_it_needs() -> None:
    scheduler: Scheduler[Any] = Scheduler(Tracing(caches=CacheSpec(1, 8, 8, 1)))
    scheduler.add(Request(0, prompt=1, tokens=1, pages=9))
    assert len(scheduler.step()) == 1


def test_times_are_counted_from_the_arrival() -> None:
    scheduler: Scheduler[Any] = Scheduler(Tracing(), clock=lambda: 10.0)
    scheduler.add(Request(0, prompt=1, tokens=1, arrived=7.5))
    assert scheduler.step() == [(0, 2.5)]


def test_closing_frees_what_runs_and_forgets_what_waits() -> None:
    model = Tracing(caches=CacheSpec(100, 8, 1, 100))
    scheduler: Scheduler[Any] = Scheduler(model)
    scheduler.add(Request(0, prompt=2, tokens=5))
    scheduler.add(Request(1, prompt=2, tokens=5))
    scheduler.step()
    scheduler.close()
    assert model.freed == [0] and not scheduler.busy


def test_a_budget_of_nothing_is_refused() -> None:
    with pytest.raises(OptionError, match="at least 1"):
        Scheduler(Tracing(), prefill_tokens=0)
