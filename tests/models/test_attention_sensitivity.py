"""What rounding keys, values and queries is foreseen to cost, against what it costs on the plan that does it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from mixplan import compile as compile_plan
from mixplan.compiler.frontends import open_checkpoint
from mixplan.compiler.frontends.tiny import tiny_model
from mixplan.compiler.sensitivity import gradient_statistics
from mixplan.runtime import load
from mixplan.runtime.kv_format import KvFormat

_WINDOWS, _LENGTH = 6, 40


def logarithms(plan: Path, windows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Log probabilities [W, L, V]."""
    with load(plan) as model:
        found = []
        for window in windows:
            logits = np.asarray(model.step(window, range(_LENGTH), [0] * _LENGTH, "all"), np.float64)
            model.free(0)
            found.append(logits - np.logaddexp.reduce(logits, -1, keepdims=True))
    return np.stack(found)


def test_rounding_is_foreseen(tmp_path: Path) -> None:
    """Within a third, which is more than chance leaves of these windows, for each format, one head alone, and scores."""
    torch.set_num_threads(1)
    model = tiny_model("llama")
    windows = np.random.default_rng(1).integers(3, 200, (_WINDOWS, _LENGTH))
    found = gradient_statistics(open_checkpoint(model).capture(), windows.tolist())
    layers = len(found.attention)
    assert sorted(found.attention) == list(range(layers))
    heads = len(found.attention[0].of(KvFormat.i4))

    def plan(name: str, kv: str, scores: str | None = None) -> NDArray[np.float64]:
        compile_plan(model, output=tmp_path / name, scheme="FP32", targets=("reference",), kv_dtype=kv, attention_scores=scores)
        return logarithms(tmp_path / name, windows)

    exact = plan("exact", "f32")

    def cost(other: NDArray[np.float64]) -> float:
        return float((np.exp(exact) * (exact - other)).sum(-1).mean())

    def within(measured: float, foreseen: float) -> None:
        assert foreseen == pytest.approx(measured, rel=0.33)

    within(cost(plan("i4", "i4")), sum(sum(one.of(KvFormat.i4)) for one in found.attention.values()))
    within(cost(plan("head", f"f32,0.{heads - 1}=i4")), found.attention[0].of(KvFormat.i4)[-1])
    mixed, keys = cost(plan("k8v4", "k8v4")), cost(plan("i8", "i8"))
    within(mixed, sum(sum(one.of(KvFormat.k8v4)) for one in found.attention.values()))
    within(keys, sum(sum(one.of(KvFormat.i8)) for one in found.attention.values()))
    assert keys < mixed
    rounded = sum(one.queries for one in found.attention.values())
    within(cost(plan("scores", "i8", "i8")), sum(sum(one.of(KvFormat.i8)) for one in found.attention.values()) + rounded)
    assert rounded > 0
