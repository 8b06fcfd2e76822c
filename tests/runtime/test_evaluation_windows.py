"""Windows of a text, and the perplexity of a plan on them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixplan.runtime import load
from mixplan.runtime.errors import RequestError
from mixplan.runtime.evaluation.measure import measure, measure_perplexity, window_logits
from mixplan.runtime.evaluation.windows import text_windows


class _Bytes:
    """A tokenizer of bytes, with what it puts around each text."""

    def __init__(self, before: Sequence[int] = (), after: Sequence[int] = ()) -> None:
        self.before, self.after, self.calls = list(before), list(after), 0

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        self.calls += 1
        ids = list(text.encode())
        return [*self.before, *ids, *self.after] if add_special_tokens else ids


def _windows(tokenizer: _Bytes, text: Path | str, **settings: Any) -> np.ndarray:
    return text_windows(tokenizer, text, **settings)  # type: ignore[arg-type]


def test_windows_follow_one_another(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(bytes(range(32, 127)) + b"\r\n")
    got = _windows(_Bytes(), path, context=10, windows=3)
    assert got.dtype == np.int64
    np.testing.assert_array_equal(got, np.arange(32, 62).reshape(3, 10))
    # As many as there are, at most 16; line ends as they stand.
    assert _windows(_Bytes(), path, context=10).shape == (9, 10)
    assert _windows(_Bytes(), path, context=97)[0, -2:].tolist() == [13, 10]
    assert _windows(_Bytes(), "a" * 100, context=2).shape == (16, 2)


def test_what_stands_before_a_text_stands_before_each_window() -> None:
    got = _windows(_Bytes(before=[1, 2], after=[3]), "abcdefghij", context=5, windows=3)
    np.testing.assert_array_equal(got, [[1, 2, 97, 98, 99], [1, 2, 100, 101, 102], [1, 2, 103, 104, 105]])
    with pytest.raises(RequestError, match="puts 2 before each text"):
        _windows(_Bytes(before=[1, 2]), "abc", context=2)


def test_a_long_text_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"word " * 100_000 + b"\xff")
    assert (
        _windows(_Bytes(), path, context=8, windows=2).tobytes() == np.frombuffer(b"word word word w", np.uint8).astype(np.int64).tobytes()
    )
    with pytest.raises(RequestError, match="not UTF-8"):
        _windows(_Bytes(), path, context=1000, windows=499)


def test_texts_that_will_not_do(tmp_path: Path) -> None:
    for settings, message in [
        ({"context": 1}, "at least 2"),
        ({"windows": 0}, "at least 1"),
        ({"context": 8, "windows": 2}, r"has 10 tokens; 2 windows of 8 need 16.*\nGive a longer"),
        ({"context": 11}, r"has 10 tokens; 1 windows of 11 need 11"),
    ]:
        with pytest.raises(RequestError, match=message):
            _windows(_Bytes(), "abcdefghij", **settings)
    with pytest.raises(RequestError, match="cannot be read: No such file"):
        _windows(_Bytes(), tmp_path / "none")
    with pytest.raises(RequestError, match="cannot be read: Is a directory"):
        _windows(_Bytes(), tmp_path)


class _Given:
    """A reference of given logits."""

    def __init__(self, logits: np.ndarray) -> None:
        self.logits = logits
        self.vocab_size = logits.shape[-1]

    def window(self, index: int) -> np.ndarray:
        return self.logits[index]


def test_measures_of_a_plan(tiny_llama_plan: Path) -> None:
    windows = np.random.default_rng(0).integers(0, 512, (3, 40))
    with load(tiny_llama_plan, max_step_tokens=16) as model:
        logits = np.stack([window_logits(model, ids) for ids in windows])
        assert model.length(0) == 0
        alone = measure_perplexity(model, windows)
        stages: list[tuple[str, float]] = []
        same = measure(model, windows, _Given(logits), progress=lambda *at: stages.append(at))
        other = measure(model, windows, _Given(np.zeros_like(logits)))
    wide = logits.astype(np.float64)
    wide -= np.log(np.exp(wide).sum(-1, keepdims=True))
    losses = -np.take_along_axis(wide[:, :-1], windows[:, 1:, None], -1)[..., 0]
    assert alone.perplexity == pytest.approx(np.exp(losses.mean()))
    assert alone.perplexity_error == pytest.approx(np.exp(losses.mean()) * losses.mean(1).std(ddof=1) / 3**0.5)
    np.testing.assert_allclose(alone.position_loss, losses.mean(0))
    assert stages == [("windows", 1 / 3), ("windows", 2 / 3), ("windows", 1.0)]
    assert (same.windows, same.context, same.kld_mean, same.same_top, same.loss, same.loss_error) == (3, 40, 0, 1, 0, 0)
    assert same.perplexity == same.reference_perplexity == pytest.approx(alone.perplexity)
    # The divergence from the uniform distribution is known: the mean loss over all tokens, less log 512.
    kld = -wide.mean(-1) - np.log(512)
    assert other.kld_mean == pytest.approx(kld.mean()) and other.kld_median == pytest.approx(np.median(kld))
    assert other.kld_p99 == pytest.approx(np.sort(kld.ravel())[-2]) and other.reference_perplexity == pytest.approx(512)
    np.testing.assert_allclose(other.positions, kld.mean(0), rtol=1e-6)


def test_windows_that_do_not_fit(tiny_llama_plan: Path) -> None:
    with load(tiny_llama_plan) as model:
        limit = model.plan.model.context_length
        for windows in (np.zeros((0, 4), int), np.zeros((2, 1), int), np.zeros(5, int), np.zeros((1, 4))):
            with pytest.raises(RequestError, match="must be integers"):
                measure_perplexity(model, windows)
        with pytest.raises(RequestError, match="context_length"):
            measure_perplexity(model, np.zeros((1, limit + 1), int))
        with pytest.raises(RequestError, match="vocabulary of 512, the reference one of 7"):
            measure(model, np.zeros((1, 4), int), _Given(np.zeros((1, 4, 7), np.float32)))
