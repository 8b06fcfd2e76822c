"""How likely a plan thinks given continuations of given contexts: what multiple-choice tasks ask."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mixplan.runtime.errors import RequestError
from mixplan.runtime.evaluation.distributions import token_losses
from mixplan.runtime.model import Model
from mixplan.runtime.progress import Progress

__all__ = ["Likelihood", "continuation_likelihoods", "longest_request"]

# Requests that run side by side; each has a sequence of its own. Numbers far from those that a caller of `step` would choose.
_LANES = 8
_FIRST_SEQUENCE = 1 << 41


@dataclass(frozen=True)
class Likelihood:
    """log_likelihood: of the continuation, nats. greedy: whether it is what greedy decoding gives."""

    log_likelihood: float
    greedy: bool


@dataclass
class _Lane:
    """A sequence and the tokens that it holds. Requests come in the order of their tokens, so that what they begin with is kept."""

    sequence: int
    requests: list[int]
    held: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))


def longest_request(model: Model) -> int:
    """The most tokens that a request may have: what the model and the KV cache take, and one that is only predicted."""
    caches = model.caches
    return min(model.plan.model.context_length, min(caches.pages, caches.max_pages_per_sequence) * caches.page_size) + 1


def continuation_likelihoods(
    model: Model, requests: Sequence[tuple[Sequence[int], Sequence[int]]], *, progress: Progress | None = None
) -> list[Likelihood]:
    """For each request (context, continuation), in token ids, neither empty. What is too long is cut from the left, as lm-eval does.

    Requests are run in the order of their tokens, several at once, and what one shares with the next is computed once. RequestError for a
    request without a context or a continuation, and for a continuation that is longer than the model's context.
    """
    most = longest_request(model)
    vocab_size = model.plan.model.vocab_size
    inputs, targets = [], []
    for context, continuation in requests:
        if not len(context) or not len(continuation) or len(continuation) >= most:
            raise RequestError(
                f"A request has {len(context)} tokens of context and {len(continuation)} of continuation; "
                f"the context must have at least 1, the continuation from 1 to {most - 1}."
            )
        tokens = np.asarray([*context, *continuation], np.int64)[-most:]
        if not 0 <= int(tokens.min()) <= int(tokens.max()) < vocab_size:
            raise RequestError(f"A request holds token id {int(tokens.max())}; allowed are 0 to {vocab_size - 1}.")
        inputs.append(tokens[:-1])
        targets.append(tokens[-len(continuation) :])
    order = sorted(range(len(requests)), key=lambda index: inputs[index].tolist())
    lanes = _lanes(model, order, max((len(tokens) for tokens in inputs), default=1))
    losses, greedy = np.zeros(len(requests)), np.ones(len(requests), np.bool_)
    done = 0
    try:
        while any(lane.requests for lane in lanes):
            batch = [(lane, lane.requests.pop(0)) for lane in lanes if lane.requests]
            _run(model, batch, inputs, targets, losses, greedy)
            done += len(batch)
            if progress is not None:
                progress("requests", done / len(requests))
    finally:
        for lane in lanes:
            model.free(lane.sequence)
    return [Likelihood(-float(loss), bool(same)) for loss, same in zip(losses, greedy, strict=True)]


def _lanes(model: Model, order: list[int], longest: int) -> list[_Lane]:
    """Sequences for as many requests at once as the KV cache holds of the longest, each with a run of the sorted requests."""
    caches = model.caches
    pages = -(-longest // caches.page_size)
    count = max(1, min(_LANES, caches.max_sequences, caches.pages // pages, len(order)))
    return [_Lane(_FIRST_SEQUENCE + number, [int(i) for i in part]) for number, part in enumerate(np.array_split(order, count))]


def _run(
    model: Model,
    batch: Iterable[tuple[_Lane, int]],
    inputs: Sequence[NDArray[np.int64]],
    targets: Sequence[NDArray[np.int64]],
    losses: NDArray[np.float64],
    greedy: NDArray[np.bool_],
) -> None:
    """One request of each lane, in as few steps as there can be; adds to the requests' losses."""
    parts: list[tuple[NDArray[np.int64], ...]] = []
    for lane, index in batch:
        tokens, wanted = inputs[index], targets[index]
        first = len(tokens) - len(wanted)
        start = min(_shared(lane.held, tokens), first)
        lane.held = tokens
        places = np.arange(start, len(tokens))
        scored = np.where(places >= first, index, -1)
        target = np.concatenate([np.zeros(first - start, np.int64), wanted])
        parts.append((tokens[start:], places, np.full(len(places), lane.sequence), scored, target))
    tokens, places, sequences, scored, target = (np.concatenate(column) for column in zip(*parts, strict=True))
    for begin in range(0, len(tokens), model.max_step_tokens):
        cut = slice(begin, begin + model.max_step_tokens)
        rows = np.flatnonzero(scored[cut] >= 0)
        logits = model.step(tokens[cut], places[cut], sequences[cut], rows if len(rows) else "none")
        if len(rows):
            owners, wanted = scored[cut][rows], target[cut][rows]
            np.add.at(losses, owners, token_losses(logits, wanted))
            np.logical_and.at(greedy, owners, logits.argmax(-1) == wanted)


def _shared(a: NDArray[np.int64], b: NDArray[np.int64]) -> int:
    """How many tokens both begin with."""
    count = min(len(a), len(b))
    different = np.flatnonzero(a[:count] != b[:count])
    return int(different[0]) if len(different) else count
