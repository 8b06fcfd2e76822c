"""A plan as the runtime runs it, against the original in float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from mixplan.compiler.evaluation.reference import TorchReference, replay_reference
from mixplan.compiler.frontends import open_checkpoint
from mixplan.runtime import load
from mixplan.runtime.evaluation.measure import measure
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
