"""Continuous batching: which tokens of which requests go into the next step.

A step carries the next token of every request that is past its prompt, and prompt tokens of others, first come, first served, cut into
chunks where they are longer than the room that is left. While requests decode, prompts get at most `prefill_tokens` of a step: that bounds
how long the others wait for their next token, and costs nothing but the order in which the same work is done. A request starts as soon as
a sequence is free and the KV pages that it needs until its end are.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from mixplan.runtime.errors import OptionError
from mixplan.runtime.hal import MOST_STEPS, CacheSpec
from mixplan.runtime.logit_rows import LogitRows
from mixplan.runtime.request import Ints, Logits
from mixplan.runtime.sampling import Draw, Sampler

__all__ = ["Schedulable", "Scheduler", "SteppedModel"]

_DEFAULT_PREFILL = 128


class SteppedModel(Protocol):
    """What scheduling needs of `mixplan.runtime.Model`."""

    @property
    def max_step_tokens(self) -> int: ...
    @property
    def caches(self) -> CacheSpec: ...
    def step(self, token_ids: Ints, positions: Ints, sequences: Ints, logits: Logits = "last") -> NDArray[np.float32]: ...
    def free(self, sequence: int) -> None: ...


Chosen = TypeVar("Chosen")


@runtime_checkable
class DecodingModel(Protocol):
    """What a model may have besides: quicker steps of one token a sequence. See `mixplan.runtime.Model`."""

    def decode(self, token_ids: Ints, sequences: Ints, choose: Callable[[LogitRows], Chosen]) -> Chosen: ...
    def decode_steps(
        self, token_ids: Ints, sequences: Ints, draws: Sequence[Draw] | None = None, *, steps: int = 1, stops: tuple[int, ...] = ()
    ) -> list[int]: ...


Out = TypeVar("Out", covariant=True)


class Schedulable(Protocol[Out]):
    """One request. `cached` tokens are in the model; `token` comes next once the prompt is. It takes `pages` KV pages at most.

    eos: tokens that end it. arrived: the clock's time when it came, which its times are counted from.
    """

    prompt: list[int]
    cached: int
    token: int
    sequence: int
    pages: int
    arrived: float
    sampler: Sampler
    eos: frozenset[int]

    @property
    def pending(self) -> int:
        """Prompt tokens that no step has taken yet."""

    @property
    def left(self) -> int:
        """Tokens that it may still get."""

    @property
    def done(self) -> bool:
        """Whether its last token was accepted."""

    def accept(self, token: int, elapsed: float) -> Out:
        """Take the next token, `elapsed` seconds after the request's arrival."""


Result = TypeVar("Result")


@dataclass
class _Step(Generic[Result]):
    """One ragged step in the making."""

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    sequences: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    wanted: list[Schedulable[Result]] = field(default_factory=list)

    def add(self, request: Schedulable[Result], tokens: Sequence[int], sample: bool) -> None:
        self.tokens += tokens
        self.positions += range(request.cached, request.cached + len(tokens))
        self.sequences += [request.sequence] * len(tokens)
        request.cached += len(tokens)
        if sample:
            self.rows.append(len(self.tokens) - 1)
            self.wanted.append(request)


class Scheduler(Generic[Result]):
    """Requests come in by `add`, at any time; each `step` runs one step of the model. Not safe for use by several threads at once.

    prefill_tokens: prompt tokens in a step that others decode in; default, 128 at most. Raises OptionError where it is below 1.
    """

    def __init__(self, model: SteppedModel, *, prefill_tokens: int | None = None, clock: Callable[[], float] = time.perf_counter) -> None:
        if prefill_tokens is not None and prefill_tokens < 1:
            raise OptionError(f"prefill_tokens is {prefill_tokens}; it must be at least 1, or prompts would wait for ever.")
        self._model = model
        self._decoding = model if isinstance(model, DecodingModel) else None
        self._clock = clock
        self._prefill = _DEFAULT_PREFILL if prefill_tokens is None else prefill_tokens
        self._most = min(model.max_step_tokens, model.caches.max_sequences)
        self._waiting: deque[Schedulable[Result]] = deque()
        self._running: list[Schedulable[Result]] = []
        self._pages = 0

    @property
    def waiting(self) -> int:
        """Requests that have no sequence yet."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Requests that hold a sequence."""
        return len(self._running)

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        return bool(self._running or self._waiting)

    def add(self, request: Schedulable[Result]) -> None:
        """Queue a request."""
        self._waiting.append(request)

    def step(self) -> list[Result]:
        """Run one step, or several where nothing but decoding is to be done; gives what requests made of their tokens, in order.

        Call only while `busy`.
        """
        self._admit()
        wanted, tokens = self._decode() or self._mixed()
        results = []
        for request, token in zip(cycle(wanted), tokens, strict=False):
            # A stop string may end a request before the last of several steps.
            if not request.done:
                results.append(request.accept(token, self._clock() - request.arrived))
                self._free_if_done(request)
        if any(request.done for request in wanted):
            self._running = [request for request in self._running if not request.done]
        return results

    def _free_if_done(self, request: Schedulable[Result]) -> None:
        if request.done:
            self._pages -= request.pages
            self._model.free(request.sequence)

    def close(self) -> None:
        """Forget all requests and free what they hold."""
        self._waiting.clear()
        running, self._running = self._running, []
        for request in running:
            if request.cached and not request.done:
                self._model.free(request.sequence)

    def _admit(self) -> None:
        """As many as are sure to fit until their end; one alone always does."""
        pages = self._model.caches.pages
        while self._waiting and len(self._running) < self._most:
            if self._running and self._pages + self._waiting[0].pages > pages:
                return
            request = self._waiting.popleft()
            self._running.append(request)
            self._pages += request.pages

    def _decode(self) -> tuple[Sequence[Schedulable[Result]], Sequence[int]] | None:
        """Steps of one token of each running request: the requests, and a token for each, or several rounds of them. None: prompts wait."""
        wanted, model = self._running, self._decoding
        if model is None or any(request.pending for request in wanted):
            return None
        last, sequences = [request.token for request in wanted], [request.sequence for request in wanted]
        tokens: Sequence[int]
        if all(request.sampler.free for request in wanted):
            steps = min(MOST_STEPS, *(request.left for request in wanted))
            greedy = all(request.sampler.greedy for request in wanted)
            draws = None if greedy else [request.sampler.draw(steps) for request in wanted]
            stops: frozenset[int] = frozenset().union(*(request.eos for request in wanted))
            tokens = model.decode_steps(last, sequences, draws, steps=steps, stops=tuple(stops))
            for request in wanted if draws else ():
                request.sampler.drawn(len(tokens) // len(wanted))
        else:
            tokens = model.decode(last, sequences, lambda rows: _choose(wanted, rows))
        for request in wanted:
            request.cached += len(tokens) // len(wanted)
        return wanted, tokens

    def _mixed(self) -> tuple[Sequence[Schedulable[Result]], Sequence[int]]:
        """One step of any kind, and a token for each request that is past its prompt."""
        step = self._compose()
        logits = self._model.step(step.tokens, step.positions, step.sequences, step.rows if step.rows else "none")
        return step.wanted, _choose(step.wanted, LogitRows(logits))

    def _compose(self) -> _Step[Result]:
        step: _Step[Result] = _Step()
        prompts = []
        for request in self._running:
            if request.pending:
                prompts.append(request)
            else:
                step.add(request, [request.token], sample=True)
        room = self._model.max_step_tokens - len(step.tokens)
        if step.tokens:
            room = min(room, self._prefill)
        for request in prompts:
            size = min(request.pending, room)
            if size <= 0:
                break
            step.add(request, request.prompt[request.cached : request.cached + size], sample=size == request.pending)
            room -= size
        return step


def _choose(wanted: Sequence[Schedulable[Result]], rows: LogitRows) -> list[int]:
    return [request.sampler.choose(rows, row) for row, request in enumerate(wanted)]
