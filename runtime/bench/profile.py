"""Where the time of a step goes, measured: decode steps and prompts, again and again, on a model that keeps the time of every op."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import numpy as np

from mixplan.runtime.bench.attribution import LoopProfile, StepProfile, attribute
from mixplan.runtime.bench.prepare import token_limit
from mixplan.runtime.cost import Work
from mixplan.runtime.errors import OptionError
from mixplan.runtime.generate import generate_batch
from mixplan.runtime.model import Model
from mixplan.runtime.progress import Progress

__all__ = ["profile_decode", "profile_prefill"]

_LEAST_STEPS, _MOST_STEPS, _SECONDS = 12, 400, 1.0
_LOOP_TOKENS = 64


def profile_decode(model: Model, context: int, batch: int, *, progress: Progress | None = None) -> StepProfile:
    """Steps of one new token in each of `batch` sequences that hold `context` tokens. The model was loaded with `profile`."""
    _check(model, context + 1, batch)
    name = f"decode, context {context}, batch {batch}"
    generator = np.random.default_rng(0)
    vocabulary = model.plan.model.vocab_size
    sequences = list(range(batch))
    for sequence in sequences:
        if context:
            model.prefill(generator.integers(0, vocabulary, context), sequence)
    ids, places = generator.integers(0, vocabulary, batch), [context] * batch

    def step() -> None:
        # At the same position again: the token before is forgotten, so that the context stays what it is.
        model.step(ids, places, sequences)

    rows = _repeat(model, [step], name, progress)
    for sequence in sequences:
        model.free(sequence)
    loop = _loop(model, context) if batch == 1 and context else None
    return _profile(model, name, batch, rows, [Work.decode(context, batch)], loop)


def profile_prefill(model: Model, tokens: int, *, progress: Progress | None = None) -> StepProfile:
    """A prompt of `tokens` tokens, in as many steps as it takes. The model was loaded with `profile`."""
    _check(model, tokens, 1)
    name = f"prefill, {tokens} tokens"
    ids = np.random.default_rng(0).integers(0, model.plan.model.vocab_size, tokens)
    spans = [(start, min(start + model.max_step_tokens, tokens)) for start in range(0, tokens, model.max_step_tokens)]

    def step(start: int, stop: int) -> None:
        model.step(ids[start:stop], range(start, stop), [0] * (stop - start), "last" if stop == tokens else "none")

    rows = _repeat(model, [partial(step, *span) for span in spans], name, progress)
    model.free(0)
    return _profile(model, name, tokens, rows, [Work((span,), int(span[1] == tokens)) for span in spans], None)


def _check(model: Model, tokens: int, batch: int) -> None:
    spec = model.caches
    if tokens > token_limit(model):
        raise OptionError(f"A sequence of {tokens} tokens was asked for; this plan takes {token_limit(model)} at most.")
    if batch > min(spec.max_sequences, model.max_step_tokens):
        raise OptionError(
            f"batch is {batch}; a step of this plan takes {min(spec.max_sequences, model.max_step_tokens)} sequences at most."
        )
    if batch * -(-tokens // spec.page_size) > spec.pages:
        raise OptionError(f"{batch} sequences of {tokens} tokens do not fit into a KV cache of {spec.pages * spec.page_size}.")


@dataclass(frozen=True)
class _Row:
    """One repetition: wall seconds, and seconds of each op, in the order of Model.profile."""

    wall: float
    ops: list[float]


def _repeat(model: Model, steps: Sequence[Callable[[], None]], name: str, progress: Progress | None) -> list[_Row]:
    """Repeat the steps for about a second, and keep the half of repetitions in the middle: the others were disturbed, or lucky."""
    rows: list[_Row] = []
    ended = 0.0
    while len(rows) < _LEAST_STEPS or (ended < _SECONDS and len(rows) < _MOST_STEPS):
        before = model.profile()
        started = perf_counter()
        for step in steps:
            step()
        wall = perf_counter() - started
        after = model.profile()
        rows.append(_Row(wall, [new.seconds - old.seconds for new, old in zip(after, before, strict=True)]))
        ended += wall
        if progress is not None:
            progress(name, min(len(rows) / _LEAST_STEPS, ended / _SECONDS, 1.0))
    if progress is not None:
        progress(name, 1.0)
    rows = sorted(rows[2:], key=lambda row: row.wall)
    quarter = len(rows) // 4
    return rows[quarter : len(rows) - quarter]


def _loop(model: Model, context: int) -> LoopProfile | None:
    """Generation of some tokens after a prompt of `context`; None where there is no room for them."""
    tokens = min(_LOOP_TOKENS, token_limit(model) - context)
    if tokens < 8:
        return None
    prompt = np.random.default_rng(1).integers(0, model.plan.model.vocab_size, context).tolist()
    chunks = generate_batch(model, [prompt], text=False, temperature=0.0, max_tokens=tokens, ignore_eos=True)
    next(chunks)
    before, started = model.profile(), perf_counter()
    count = sum(1 for _ in chunks)
    wall, after = perf_counter() - started, model.profile()
    native = sum(new.seconds - old.seconds for new, old in zip(after, before, strict=True))
    return LoopProfile(wall / count, native / count, context + tokens // 2)


def _profile(model: Model, name: str, tokens: int, rows: Sequence[_Row], works: Sequence[Work], loop: LoopProfile | None) -> StepProfile:
    seconds = [statistics.fmean(column) for column in zip(*(row.ops for row in rows), strict=True)]
    ops = attribute(model.plan, model.profile(), seconds, works)
    return StepProfile(name, tokens, len(rows), statistics.fmean(row.wall for row in rows), ops, loop)
