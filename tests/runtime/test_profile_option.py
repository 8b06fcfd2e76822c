"""The time of every op, where it was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from mixplan.runtime import load


def test_times_of_ops(tiny_llama_plan: Path) -> None:
    with load(tiny_llama_plan, profile=True) as model:
        model.step([1, 2, 3], [0, 1, 2], [0, 0, 0])
        first = model.profile()
        model.step([4], [3], [0])
        second = model.profile()
        ops = {model.plan.nodes[time.node].op for time in first}
    assert {"attention", "linear"} <= ops
    assert [(time.region, time.node) for time in first] == [(time.region, time.node) for time in second]
    assert sum(time.seconds for time in first) < sum(time.seconds for time in second)


def test_only_regions_where_it_was_not_asked_for(tiny_llama_plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MIXPLAN_PROFILE", raising=False)
    with load(tiny_llama_plan) as model:
        model.step([1], [0], [0])
        (whole,) = model.profile()
    assert whole.node == -1 and whole.seconds > 0


def test_the_environment_asks_too(tiny_llama_plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIXPLAN_PROFILE", "1")
    with load(tiny_llama_plan) as model:
        assert len(model.profile()) > 10
