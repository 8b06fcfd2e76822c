"""Continuations' likelihoods, run side by side with what they share computed once, against one whole step for each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mixplan.runtime import Model, load
from mixplan.runtime.errors import RequestError
from mixplan.runtime.evaluation.likelihood import continuation_likelihoods, longest_request


@pytest.fixture(scope="module")
def model(tiny_llama_plan: Path) -> Iterator[Model]:
    with load(tiny_llama_plan, max_sequences=3, kv_tokens=288, max_step_tokens=24) as model:
        yield model


def _plain(model: Model, context: list[int], continuation: list[int]) -> tuple[float, bool]:
    ids = np.array([*context, *continuation])[-longest_request(model) :][:-1]
    rows = []
    for start in range(0, len(ids), model.max_step_tokens):
        chunk = ids[start : start + model.max_step_tokens]
        rows.append(model.step(chunk, np.arange(start, start + len(chunk)), np.zeros(len(chunk), int), "all"))
    model.free(0)
    logits = np.concatenate(rows)[-len(continuation) :].astype(np.float64)
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return float(logs[np.arange(len(continuation)), continuation].sum()), logits.argmax(-1).tolist() == continuation


def test_they_are_those_of_each_alone(model: Model) -> None:
    rng = np.random.default_rng(0)
    stem = rng.integers(0, 512, 40).tolist()
    requests = [
        (stem[: int(a)], rng.integers(0, 512, int(b)).tolist())
        for a, b in zip(rng.integers(1, 40, 30), rng.integers(1, 30, 30), strict=True)
    ]
    requests += [(stem, stem[:1]), (stem, stem[:1]), (stem[:1], stem[1:]), ([7], [7])]
    requests.append((rng.integers(0, 512, 500).tolist(), stem[:5]))  # cut from the left
    best = int(np.argmax(_last(model, stem)))
    requests.append((stem, [best]))
    done: list[float] = []
    found = continuation_likelihoods(model, requests, progress=lambda stage, share: done.append(share))
    assert done[-1] == 1 and done == sorted(done)
    for one, (context, continuation) in zip(found, requests, strict=True):
        wanted, greedy = _plain(model, context, continuation)
        assert one.log_likelihood == pytest.approx(wanted, rel=1e-5) and one.greedy == greedy
    assert found[-1].greedy and not all(one.greedy for one in found)
    assert all(model.length((1 << 41) + lane) == 0 for lane in range(8))


def _last(model: Model, ids: list[int]) -> np.ndarray:
    row = model.prefill(ids)
    model.free(0)
    return row


def test_what_is_shared_is_computed_once(model: Model) -> None:
    before = model.metrics().tokens
    stem = list(range(64))
    continuation_likelihoods(model, [(stem, [choice, 3]) for choice in range(10, 19)])
    # Three lanes compute the stem once each, then the choices' own tokens.
    assert model.metrics().tokens - before == 3 * 64 + 9 + 6


def test_requests_that_will_not_do(model: Model) -> None:
    assert continuation_likelihoods(model, []) == []
    for request in (([], [1]), ([1], []), ([1], [1] * longest_request(model))):
        with pytest.raises(RequestError, match="must have at least 1"):
            continuation_likelihoods(model, [request])
    with pytest.raises(RequestError, match="token id 600; allowed are 0 to 511"):
        continuation_likelihoods(model, [([1], [600])])
    assert model.length(1 << 41) == 0
