"""A plan as the runtime runs it, against the original in float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from mixplan.compiler.evaluation.against import evaluate_against
from mixplan.compiler.evaluation.reference import TorchReference, replay_reference, streamed_reference
from mixplan.compiler.frontends import open_checkpoint
from mixplan.runtime import load
from mixplan.runtime.errors import CapacityError
from mixplan.runtime.evaluation.evaluate import EvalOptions
from mixplan.runtime.evaluation.measure import Measured, measure
from mixplan.runtime.evaluation.windows import text_windows


@pytest.fixture(scope="module")
def windows(tiny_llama_plan: Path) -> np.ndarray:
    with load(tiny_llama_plan) as model:
        return text_windows(model.tokenizer, "The keeper wrote down the weather. " * 9, context=60, windows=5)


def _reference(folder: Path, windows: np.ndarray, *, keep: bool = True) -> TorchReference:
    checkpoint = open_checkpoint(folder)
    try:
        return replay_reference(checkpoint.capture(), windows, keep=keep)
    finally:
        checkpoint.close()


def test_an_fp32_plan_does_not_diverge(tiny_llama_plan: Path, tiny_llama_dir: Path, windows: np.ndarray) -> None:
    with _reference(tiny_llama_dir, windows) as reference, load(tiny_llama_plan) as model:
        found = measure(model, windows, reference)
        again = measure(model, windows, reference)
    assert found == again
    assert found.kld_mean < 1e-10 and found.kld_p99 < 1e-9 and found.same_top == 1
    assert found.perplexity == pytest.approx(found.reference_perplexity, rel=1e-5)
    network = AutoModelForCausalLM.from_pretrained(tiny_llama_dir, dtype=torch.float32)
    with torch.no_grad():
        wanted = [float(network(torch.from_numpy(ids)[None], labels=torch.from_numpy(ids)[None]).loss) for ids in windows]
    assert found.reference_perplexity == pytest.approx(float(np.exp(np.mean(wanted))), rel=1e-5)


def test_windows_are_computed_once_where_they_are_kept(tiny_llama_dir: Path, windows: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    compute = TorchReference._compute
    monkeypatch.setattr(TorchReference, "_compute", lambda self, index: calls.append(index) or compute(self, index))
    kept, anew = _reference(tiny_llama_dir, windows), _reference(tiny_llama_dir, windows, keep=False)
    assert kept.kept and not anew.kept
    for reference in (kept, anew):
        for index in (1, 0, 1):
            assert reference.window(index).shape == (60, 512)
    assert calls == [1, 0, 1, 0, 1]
    np.testing.assert_array_equal(kept.window(1), anew.window(1))
    kept.close()
    monkeypatch.setattr("shutil.disk_usage", lambda where: type("Usage", (), {"free": 1 << 16}))
    assert not _reference(tiny_llama_dir, windows).kept


def test_a_streamed_reference_is_the_same(tiny_llama_dir: Path, windows: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = open_checkpoint(tiny_llama_dir)
    captured = checkpoint.capture()
    stages: list[tuple[str, float]] = []
    streamed = streamed_reference(captured, windows, progress=lambda *at: stages.append(at))
    checkpoint.close()
    held = _reference(tiny_llama_dir, windows)
    for index in range(len(windows)):
        np.testing.assert_allclose(streamed.window(index), held.window(index), rtol=1e-4, atol=1e-5)
    assert stages[-1] == ("original", 1.0)
    monkeypatch.setattr("shutil.disk_usage", lambda where: type("Usage", (), {"free": 1 << 16}))
    with pytest.raises(CapacityError, match=r"take 614,400 bytes in .*, which has 65,536.*\nTake fewer windows"):
        streamed_reference(captured, windows)


def test_an_original_larger_than_memory_is_streamed(
    tiny_llama_plan: Path, tiny_llama_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The keeper wrote down the weather. " * 9, encoding="utf-8")
    options = EvalOptions(windows=3, context=40)
    held = evaluate_against(tiny_llama_plan, text, str(tiny_llama_dir), options)
    monkeypatch.setattr("mixplan.compiler.evaluation.against.available_memory", lambda: 1000)
    streamed = evaluate_against(tiny_llama_plan, text, str(tiny_llama_dir), options)
    assert streamed.figures.perplexity == held.figures.perplexity
    assert isinstance(streamed.figures, Measured) and isinstance(held.figures, Measured)
    assert streamed.figures.reference_perplexity == pytest.approx(held.figures.reference_perplexity, rel=1e-6)
    assert streamed.figures.kld_mean < 1e-9
