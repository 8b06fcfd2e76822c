"""Decode steps give what ordinary steps give, on the device that has a short way for them and on those that have none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from mixplan.runtime import load
from mixplan.runtime.devices.cpu_info import runnable_levels
from mixplan.runtime.errors import CapacityError, InternalError, RequestError
from mixplan.runtime.generate import collect, generate_batch
from mixplan.runtime.logit_rows import LogitRows
from mixplan.runtime.model import Model
from mixplan.runtime.sampling import Sampler, SamplingParams
from mixplan.targets.base import CompileOptions
from mixplan.targets.cpu.target import CpuTarget

PROMPTS = {3: [3, 14, 15, 9], 8: [26], 1: [5, 35, 8]}


@pytest.fixture(scope="module")
def kernels() -> dict[tuple[int, int], dict[str, bytes]]:
    return {}


@pytest.fixture
def open_toy(
    make_toy: Any, tmp_path: Path, kernels: dict[Any, dict[str, bytes]], request: pytest.FixtureRequest
) -> Iterator[Callable[..., Model]]:
    """open(device, vocab=..., **options): the toy decoder on one device, with kernels of this CPU's best level."""
    models: list[Model] = []

    def start(device: str, *, vocab: int = 150, context: int = 256, weights: dict[str, Any] | None = None, **options: Any) -> Model:
        toy = make_toy(vocab=vocab)
        toy.w.update(weights or {})
        builder, logits = toy.build((device,), context_length=context)
        if device == "cpu":
            plan = builder.plan(logits)
            made = kernels.get((vocab, context))
            if made is None:
                made = CpuTarget().compile(plan, plan.regions[0], CompileOptions(runnable_levels()[:1])).kernels
                kernels[vocab, context] = made
            builder.files = {f"kernels/{level}.so": data for level, data in made.items()}
            regions = builder._regions((logits,))
            paths = {level: f"kernels/{level}.so" for level in made}
            builder._regions = lambda outputs: tuple(msgspec.structs.replace(region, kernels=paths) for region in regions)
        path = tmp_path / f"{len(models)}.plan"
        builder.write(path, logits)
        models.append(load(path, trust=True, **options))
        return models[-1]

    yield start
    for model in models:
        model.close()


@pytest.fixture(params=["cpu", "reference"])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def _prefill(model: Model) -> list[int]:
    return [int(model.prefill(prompt, sequence).argmax()) for sequence, prompt in PROMPTS.items()]


def _copy(rows: LogitRows) -> tuple[np.ndarray, list[int], np.ndarray | None]:
    return rows.rows.copy(), list(rows.best), None if rows.maxima is None else rows.maxima.copy()


def test_decode_is_a_step(open_toy: Callable[..., Model], device: str) -> None:
    model, other = open_toy(device), open_toy(device)
    tokens = _prefill(model)
    assert tokens == _prefill(other)
    order = list(PROMPTS)
    for _ in range(40):
        rows, best, maxima = model.decode(tokens, order, _copy)
        want = other.step(tokens, [other.length(s) for s in order], order)
        np.testing.assert_array_equal(rows, want)
        assert best == want.argmax(axis=1).tolist()
        if maxima is not None:
            assert maxima.shape == (3, 3)
            np.testing.assert_array_equal(maxima.max(axis=1), want.max(axis=1))
        assert [model.length(s) for s in order] == [other.length(s) for s in order]
        tokens = best
    assert (maxima is not None) == (device == "cpu")
    assert model.metrics().steps == other.metrics().steps
    assert model.metrics().tokens == other.metrics().tokens


def test_a_new_sequence_begins_with_a_decode_step(open_toy: Callable[..., Model], device: str) -> None:
    model = open_toy(device)
    rows, _, _ = model.decode([7], [5], _copy)
    np.testing.assert_array_equal(rows, model.step([7], [0], [6]))


def test_greedy_steps_in_one_call(open_toy: Callable[..., Model], device: str) -> None:
    model, other = open_toy(device), open_toy(device)
    tokens, order = _prefill(model), list(PROMPTS)
    want, last = [], _prefill(other)
    for _ in range(60):
        last = other.decode(last, order, lambda rows: list(rows.best))
        want += last
    found: list[int] = []
    rounds = []
    while len(found) < len(want):
        new = model.decode_greedy(tokens, order, steps=9, seconds=60)
        rounds.append(len(new) // 3)
        found, tokens = found + new, new[-3:]
    assert found[: len(want)] == want
    # Sequences fill their pages after different numbers of tokens, and no call goes beyond a page.
    assert max(rounds) == (9 if device == "cpu" else 1)
    assert [model.length(s) for s in order] == [len(p) + len(found) // 3 for p in PROMPTS.values()]


def test_greedy_steps_stop(open_toy: Callable[..., Model]) -> None:
    model = open_toy("cpu")
    first = _prefill(model)
    order = list(PROMPTS)
    whole = model.decode_greedy(first, order, steps=12, seconds=60)
    for sequence, prompt in PROMPTS.items():
        model.truncate(sequence, len(prompt))
    stop = whole[7]
    cut = whole.index(stop) // 3 + 1
    assert model.decode_greedy(first, order, steps=12, stops=(999, stop), seconds=60) == whole[: 3 * cut]
    for sequence, prompt in PROMPTS.items():
        assert model.length(sequence) == len(prompt) + cut
        model.truncate(sequence, len(prompt))
    assert model.decode_greedy(first, order, steps=12, seconds=0) == whole[:3]


def test_greedy_steps_end_with_the_context(open_toy: Callable[..., Model], device: str) -> None:
    model = open_toy(device, context=40)
    token = int(model.prefill([5] * 30, 0).argmax())
    lengths = []
    while model.length(0) < 40:
        token = model.decode_greedy([token], [0], steps=100, seconds=60)[-1]
        lengths.append(model.length(0))
    assert lengths[-1] == 40
    with pytest.raises(RequestError, match="Sequence 0 has 40 tokens, and the model's context_length is 40"):
        model.decode_greedy([token], [0])


@pytest.mark.parametrize(
    ("tokens", "sequences", "error", "text"),
    [
        ([1, 2], [0], RequestError, "one token for each sequence; got 2 and 1"),
        ([], [], RequestError, "one token for each sequence"),
        ([1, 150], [0, 1], RequestError, "token id 150 \\(at index 1\\); allowed are 0 to 149"),
        ([-1], [0], RequestError, "token id -1"),
        ([1, 2], [4, 4], RequestError, "takes each sequence once"),
        ([1.5], [0], RequestError, "token_ids must be a flat list of whole numbers"),
        ([1] * 65, list(range(65)), CapacityError, "max_step_tokens=64"),
        ([1] * 17, list(range(17)), CapacityError, "17 new sequences; 16 of max_sequences=16"),
    ],
)
def test_wrong_calls_change_nothing(
    open_toy: Callable[..., Model], device: str, tokens: Any, sequences: Any, error: type[Exception], text: str
) -> None:
    model = open_toy(device)
    for call in (lambda: model.decode(tokens, sequences, _copy), lambda: model.decode_greedy(tokens, sequences)):
        with pytest.raises(error, match=text):
            call()
    assert model.metrics().sequences == 0


def test_numbers_that_are_none(open_toy: Callable[..., Model], device: str) -> None:
    model = open_toy(device, weights={"norm": np.full(24, np.nan, np.float32)})
    model.step([1], [0], [0], "none")
    with pytest.raises(InternalError, match="The logits hold nan"):
        model.decode_greedy([1], [0], steps=5)
    assert model.length(0) == 1
    with pytest.raises(InternalError, match="The logits hold nan"):
        list(model.generate([1, 2], SamplingParams(max_tokens=4)))
    assert model.metrics().sequences == 1


def test_a_choice_that_fails_changes_nothing(open_toy: Callable[..., Model], device: str) -> None:
    model = open_toy(device)
    model.prefill([1, 2, 3], 0)

    def fail(rows: LogitRows) -> int:
        raise KeyError("no")

    with pytest.raises(KeyError):
        model.decode([4, 5], [0, 9], fail)
    assert (model.length(0), model.length(9)) == (3, 0)


def test_closed(open_toy: Callable[..., Model], device: str) -> None:
    model = open_toy(device)
    model.close()
    with pytest.raises(RequestError, match="The model is closed"):
        model.decode_greedy([1], [0])


@pytest.mark.parametrize("steps", [1, 7])
def test_drawn_steps_in_one_call(open_toy: Callable[..., Model], device: str, steps: int) -> None:
    """Each sequence by its own settings and numbers, whether the device draws them or numpy does."""
    model, other = open_toy(device), open_toy(device)
    tokens, order, last = _prefill(model), list(PROMPTS), _prefill(other)
    params = [SamplingParams(temperature=1.0, seed=3), SamplingParams(), SamplingParams(temperature=0.7, top_k=9, top_p=0.9, seed=4)]
    samplers, choosing = [Sampler(p) for p in params], [Sampler(p) for p in params]
    found: list[int] = []
    while len(found) < 3 * 40:
        new = model.decode_steps(tokens, order, [sampler.draw(steps) for sampler in samplers], steps=steps, seconds=60)
        for sampler in samplers:
            sampler.drawn(len(new) // 3)
        found, tokens = found + new, new[-3:]
    want: list[int] = []
    while len(want) < len(found):
        last = other.decode(last, order, lambda rows: [sampler.choose(rows, row) for row, sampler in enumerate(choosing)])
        want += last
    assert found == want


def test_draws_must_be_enough(open_toy: Callable[..., Model], device: str) -> None:
    model = open_toy(device)
    sampler = Sampler(SamplingParams(temperature=1.0))
    for draws in ([sampler.draw(1)], [sampler.draw(5), sampler.draw(5)]):
        with pytest.raises(RequestError, match="needs a draw with a number for each step"):
            model.decode_steps([1], [0], draws, steps=2)
    assert model.length(0) == 0


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.0},
        {"temperature": 1.0, "seed": 5},
        {"temperature": 1.0, "top_k": 3, "seed": 5},
        {"temperature": 0.8, "top_p": 0.9, "seed": 6},
        {"temperature": 0.8, "min_p": 0.05, "seed": 7},
        {"temperature": 0.8, "top_k": 40, "repetition_penalty": 1.2, "seed": 8},
    ],
)
def test_generation_is_the_same_without_the_short_way(open_toy: Callable[..., Model], settings: dict[str, Any]) -> None:
    model = open_toy("cpu")
    params = SamplingParams(max_tokens=50, ignore_eos=True, **settings)
    prompts = list(PROMPTS.values())
    short = collect(generate_batch(model, prompts, params))
    assert model._decoder.short
    model._decoder._device = None
    assert [g.token_ids for g in collect(generate_batch(model, prompts, params))] == [g.token_ids for g in short]
    assert all(len(g.token_ids) == 50 and g.finish_reason == "length" for g in short)
