"""The toy decoder on the reference device, against straightforward numpy, however its tokens are cut into steps."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixplan.runtime import load
from mixplan.runtime.errors import CapacityError, InternalError, OptionError, RequestError, UnsupportedError
from mixplan.runtime.kv_format import KvFormat

# One layer of float32 in another order of summation.
TOLERANCE = 2e-5
TOKENS = [
    3,
    14,
    15,
    9,
    26,
    5,
    35,
    8,
    9,
    7,
    9,
    32,
    3,
    8,
    4,
    6,
    26,
    4,
    33,
    8,
    3,
    27,
    9,
    5,
    0,
    28,
    8,
    4,
    19,
    7,
    16,
    9,
    36,
    9,
    3,
    7,
    5,
    10,
    5,
    8,
]


def close(given: np.ndarray, wanted: np.ndarray) -> None:
    assert given.dtype == np.float32
    np.testing.assert_allclose(given, wanted, atol=TOLERANCE * float(np.abs(wanted).max()), rtol=0)


@pytest.mark.parametrize("chunk", [1, 7, 32, 40])
@pytest.mark.parametrize("window", [0, 5])
def test_one_sequence_in_pieces(make_toy: Any, tmp_path: Path, chunk: int, window: int) -> None:
    toy = make_toy(window=window)
    toy.write(tmp_path / "p")
    with load(tmp_path / "p") as model:
        rows = [
            model.step(TOKENS[i : i + chunk], np.arange(i, min(i + chunk, len(TOKENS))), [4] * len(TOKENS[i : i + chunk]), "all")
            for i in range(0, len(TOKENS), chunk)
        ]
        close(np.concatenate(rows), toy.logits(TOKENS))
        assert model.length(4) == len(TOKENS)


@pytest.mark.parametrize("devices", [("reference", "reference"), ("reference", "reference", "reference")])
def test_regions_pass_values(toy: Any, tmp_path: Path, devices: tuple[str, ...]) -> None:
    toy.write(tmp_path / "p", devices)
    with load(tmp_path / "p") as model:
        assert len(model.placement) == len(devices)
        close(model.step(TOKENS[:9], range(9), [0] * 9, "all"), toy.logits(TOKENS[:9]))
        assert all(region["calls"] == 1 for region in model.metrics().regions.values())


def test_ragged_batch(toy: Any, toy_plan: Path) -> None:
    """Three sequences of different lengths, one arriving late, with interleaved tokens."""
    texts = {10: TOKENS[:33], -7: TOKENS[5:12], 2**40: TOKENS[20:21]}
    with load(toy_plan) as model:
        model.step(texts[10][:20], range(20), [10] * 20, "none")
        close(
            model.step([*texts[-7][:5], texts[10][20]], [*range(5), 20], [-7] * 5 + [10]),
            [toy.logits(texts[-7])[4], toy.logits(texts[10])[20]],
        )
        rest = [(10, p) for p in range(21, 33)] + [(-7, 5), (-7, 6), (2**40, 0)]
        # Any order of the sequences, as long as each one's positions ascend.
        mixed = [rest[i] for i in (0, 12, 1, 14, 2, 13, 3, 4, 5, 6, 7, 8, 9, 10, 11)]
        args = [texts[s][p] for s, p in mixed], [p for _, p in mixed], [s for s, _ in mixed]
        wanted = {s: toy.logits(text) for s, text in texts.items()}
        close(model.step(*args), np.stack([wanted[10][32], wanted[-7][6], wanted[2**40][0]]))
        # Going back by a few tokens and asking for rows in an order of our own.
        close(model.step(*args, [5, 1, 0]), np.stack([wanted[s][p] for s, p in (mixed[5], mixed[1], mixed[0])]))
        assert model.step(*args, "none").shape == (0, toy.vocab)
        close(model.step(*args, "all"), np.stack([wanted[s][p] for s, p in mixed]))


def test_going_back_forgets(toy: Any, toy_plan: Path) -> None:
    with load(toy_plan) as model:
        model.prefill(TOKENS)
        other = [*TOKENS[:10], 1, 2, 3]
        close(model.step([1, 2, 3], [10, 11, 12], [0, 0, 0], "all"), toy.logits(other)[10:])
        assert model.length(0) == 13
        assert model.metrics().kv_pages_used == 1
        model.truncate(0, 11)
        close(model.step([7], [11], [0]), toy.logits([*other[:11], 7])[-1:])


def test_prefill_in_chunks(toy: Any, toy_plan: Path) -> None:
    with load(toy_plan, max_step_tokens=16) as model:
        close(model.prefill(TOKENS, 3), toy.logits(TOKENS)[-1])
        close(model.prefill([5], 3), toy.logits([*TOKENS, 5])[-1])
        assert model.metrics().steps == 4


# Bytes of a token: 2 heads, keys and values of 6 elements each.
@pytest.mark.parametrize(
    ("dtype", "tolerance", "size"),
    [
        (KvFormat.f16, 2e-3, 2 * 2 * 12),
        (KvFormat.bf16, 2e-2, 2 * 2 * 12),
        (KvFormat.i8, 2e-2, 2 * (12 + 2 * 4)),
        (KvFormat.k8v4, 0.2, 2 * (6 + 3 + 2 * 4)),
        (KvFormat.i4, 0.3, 2 * (6 + 2 * 4)),
        (KvFormat.fp8, 0.2, 2 * 12),
    ],
)
def test_narrow_kv_cache(toy: Any, tmp_path: Path, dtype: KvFormat, tolerance: float, size: int) -> None:
    toy.write(tmp_path / "p", kv_dtype=dtype)
    with load(tmp_path / "p") as model:
        wanted = toy.logits(TOKENS)
        np.testing.assert_allclose(model.step(TOKENS, range(40), [0] * 40, "all"), wanted, atol=tolerance * float(np.abs(wanted).max()))
        assert model.metrics().kv_bytes_per_token == size


def test_tap_shows_every_node(toy: Any, tmp_path: Path) -> None:
    plan = toy.write(tmp_path / "p", ("reference", "reference"))
    seen: dict[str, np.ndarray] = {}
    with load(tmp_path / "p") as model:
        logits = model.step([1, 2, 3], [0, 1, 2], [0, 0, 0], tap=lambda name, array: seen.__setitem__(name, array.copy()))
    assert set(seen) == {value.name for value in plan.values if value.kind == "node"}
    np.testing.assert_array_equal(seen["head"][0], logits)
    assert seen["attention"].shape == (1, 3, 4, 6)


def test_tap_needs_the_reference(toy: Any, tmp_path: Path) -> None:
    toy.write(tmp_path / "p", ("null",))
    with load(tmp_path / "p") as model, pytest.raises(UnsupportedError, match="device='reference'"):
        model.step([1], [0], [0], tap=lambda name, array: None)


@pytest.mark.parametrize(
    ("args", "error", "text"),
    [
        (([], [], []), RequestError, "at least one token"),
        (([1, 2], [0], [0, 0]), RequestError, "as many positions"),
        (([37], [0], [0]), RequestError, "vocab_size is 37"),
        (([-1], [0], [0]), RequestError, "token id -1"),
        (([1], [256], [0]), RequestError, "context_length is 256"),
        (([1], [-1], [0]), RequestError, "position -1"),
        (([1], [1], [0]), RequestError, "has 0 tokens"),
        (([1, 1], [0, 2], [0, 0]), RequestError, "consecutive"),
        (([1, 1, 1], [0, 0, 0], [0, 1, 0]), RequestError, "consecutive"),
        (([1.5], [0], [0]), RequestError, "flat list of integers"),
        (([[1]], [[0]], [[0]]), RequestError, "flat list of integers"),
        (([2**70], [0], [0]), RequestError, "flat list of integers"),
        (([[1], [1, 2]], [0, 0], [0, 0]), RequestError, "flat list of integers"),
        (([1], [0], [0], "first"), RequestError, "'first'"),
        (([1], [0], [0], [1]), RequestError, "logits row 1"),
        (([1], [0], [0], [0] * 65), CapacityError, "65 rows"),
        (([1] * 65, range(65), [0] * 65), CapacityError, "max_step_tokens=64"),
        (([1] * 17, [0] * 17, range(17)), CapacityError, "max_sequences=16"),
    ],
)
def test_bad_requests(toy_plan: Path, args: Any, error: type[Exception], text: str) -> None:
    with load(toy_plan) as model:
        model.prefill([1, 2], 99)
        with pytest.raises(error, match=text):
            model.step(*args)
        assert (model.length(0), model.length(99)) == (0, 2)
        assert model.metrics().kv_pages_used == 1
        model.step([1], [2], [99])


def test_out_of_pages(toy_plan: Path) -> None:
    with load(toy_plan, kv_tokens=64) as model:
        model.prefill([1] * 40, 0)
        with pytest.raises(CapacityError, match=r"1 more KV pages.*0 of 2 are free"):
            model.step([1], [0], [1])
        with pytest.raises(CapacityError, match="at most 64"):
            model.step([1] * 30, range(40, 70), [0] * 30)
        model.free(0)
        model.free(12345)
        model.prefill([1] * 64, 1)
        # A step in which one sequence shrinks and another takes its page.
        model.step([1, 1], [10, 0], [1, 2])
        assert (model.length(1), model.length(2)) == (11, 1)


def test_failing_device_undoes_the_step(toy_plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with load(toy_plan) as model:
        model.prefill([1, 2, 3], 0)

        def fail(*_: Any) -> Any:
            raise InternalError("broken")

        with monkeypatch.context() as patch:
            patch.setattr(model._executor, "run", fail)
            with pytest.raises(InternalError, match="broken"):
                model.step([1] * 62, [*range(2, 42), *range(22)], [0] * 40 + [5] * 22)
        assert (model.length(0), model.length(5)) == (2, 0)
        assert model.metrics().kv_pages_used == 1
        model.step([3], [2], [0])


@pytest.mark.parametrize(
    "options",
    [
        {"max_step_tokens": 65},
        {"max_step_tokens": 0},
        {"max_sequences": 0},
        {"kv_tokens": 0},
        {"threads": 0},
        {"device": ""},
        {"verify": "no"},
    ],
)
def test_bad_options(toy_plan: Path, options: Any) -> None:
    with pytest.raises(OptionError):
        load(toy_plan, **options)


def test_metrics(toy_plan: Path) -> None:
    with load(toy_plan) as model:
        model.step([1, 2], [0, 0], [0, 1])
        metrics = model.metrics().to_dict()
    assert (metrics["steps"], metrics["tokens"], metrics["sequences"], metrics["kv_pages_used"]) == (1, 2, 2, 2)
    assert metrics["kv_pages"] == 8
    assert 0 < metrics["regions"]["reference_0"]["seconds"] <= metrics["seconds"]
    assert metrics["peak_rss_bytes"] > 10 << 20
    assert metrics["weight_bytes"] == (toy_plan / "weights.safetensors").stat().st_size


def test_closed_model(toy_plan: Path) -> None:
    model = load(toy_plan)
    model.close()
    model.close()
    with pytest.raises(RequestError, match="closed"):
        model.step([1], [0], [0])


def test_results_are_the_callers(toy_plan: Path) -> None:
    """A step's logits do not change when the next step runs."""
    with load(toy_plan) as model:
        first = model.step([1], [0], [0])
        kept = first.copy()
        model.step([2], [1], [0])
        np.testing.assert_array_equal(first, kept)
        assert first.flags.writeable


def test_threads_take_turns(toy: Any, toy_plan: Path) -> None:
    results: dict[int, np.ndarray] = {}
    with load(toy_plan) as model:

        def work(sequence: int) -> None:
            for position, token in enumerate(TOKENS[sequence : sequence + 12]):
                results[sequence] = model.step([token], [position], [sequence])

        threads = [threading.Thread(target=work, args=(sequence,)) for sequence in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for sequence in range(6):
        close(results[sequence], toy.logits(TOKENS[sequence : sequence + 12])[-1:])
