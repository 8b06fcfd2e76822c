"""A whole decoder on the GPU device through a driver that checks every call: what goes up, what is launched, what is captured and freed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixplan.compiler.pipeline import compile as compile_plan
from mixplan.runtime import load
from mixplan.runtime.devices import gpu
from mixplan.runtime.devices.gpu_api import CUDA, DRIVERS, Api
from mixplan.runtime.errors import CapacityError


@pytest.fixture(scope="module")
def made(fake_driver: Any, tiny_llama_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Any]]:
    builds = fake_driver.Builds()
    plan = tmp_path_factory.mktemp("driver") / "W4A8.plan"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mixplan.targets.gpu.target.build_all", builds)
        patch.setattr("mixplan.targets.gpu.target.compiler_identity", lambda: "none")
        compile_plan(tiny_llama_dir, output=plan, scheme="W4A8", targets=("gpu",), isa=("sm_90", "gfx942"), max_step_tokens=64)
    yield plan, builds


OPTIONS = {"device": "gpu", "max_sequences": 8, "kv_tokens": 512}


@pytest.mark.parametrize("api", DRIVERS, ids=["cuda", "hip"])
def test_a_decoder_from_load_to_close(api: Api, made: tuple[Path, Any], fake_gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, builds = made
    fake = fake_gpu(api)
    monkeypatch.setattr(gpu, "find_driver", lambda: (fake.driver(), ""))
    seen: dict[str, list[Any]] = {"ids": [], "positions": []}

    def embedding(driver: Any, grid: tuple[int, ...], values: tuple[int, ...]) -> None:
        seen["ids"].append(np.frombuffer(driver.bytes_at(values[0]), np.int64)[: grid[0]].tolist())

    def append(driver: Any, grid: tuple[int, ...], values: tuple[int, ...]) -> None:
        seen["positions"].append(np.frombuffer(driver.bytes_at(values[-5]), np.int32)[: grid[0]].tolist())

    for entry in builds.requests:
        if entry.startswith("embedding"):
            fake.kernels[entry] = embedding
        if entry.startswith("kv_append"):
            fake.kernels[entry] = append
    with load(plan, **OPTIONS) as model:
        assert model.placement[0].isa == f"{'sm_90' if api is CUDA else 'gfx942'} (Fake GPU)"
        held = model.metrics().regions["r0_gpu"]
        assert fake.get("up") >= held["weight_bytes"] > 90_000
        assert fake.get("live") >= sum(held[f"{what}_bytes"] for what in ("weight", "arena", "kv"))
        assert fake.get("direct") == 0
        logits = model.step([*range(40, 61)], [*range(21)], [5] * 21)
        assert logits.shape == (1, 512)
        assert seen["ids"] == [[*range(40, 61)]]
        assert seen["positions"] and all(one == [*range(21)] for one in seen["positions"])
        launched = fake.launches
        _check(api, launched, builds.requests)
        prefill = fake.get("direct")
        # Steps of one token of one sequence: launched, captured, replayed; then of two sequences, for which all that begins anew.
        for step, (graphs, replays) in enumerate([(0, 0), (1, 1), (1, 2), (1, 2), (2, 3), (2, 4)]):
            count, at = (1, 21 + step) if step < 3 else (2, 21 + step)
            ids = [100 + step, 200 + step][:count]
            model.step(ids, [at, step - 3][:count], [5, 7][:count])
            assert (fake.get("graphs"), fake.get("replays")) == (graphs, replays)
            assert seen["ids"][-1] == ids
            assert seen["positions"][-1] == [at, step - 3][:count]
        # Of each size one step was launched, one captured, and that one run twice.
        decode = fake.get("direct") - prefill
        assert fake.get("captured") == decode > 20 and fake.get("executed") == len(launched) == prefill + 3 * decode
        assert model.metrics().regions["r0_gpu"]["graph_steps"] == 2.0
        _check(api, launched, builds.requests)
    assert fake.report() == ""


def _check(api: Api, launches: Sequence[tuple[str, Any, int, int, tuple[int, ...]]], requests: dict[str, Any]) -> None:
    """Blocks are whole warps; pointers that kernels were built to take as multiples of 16 bytes are; the two for scratch are null."""
    for entry, _, threads, shared, values in launches:
        assert threads % (32 if api is CUDA else 64) == 0 and shared == 1024
        assert values[-2:] == (0, 0)
        for kind, value in zip(filter(None, requests[entry].types), values, strict=False):
            if kind.startswith("*"):
                assert value > 1 << 52 and (kind.endswith("!") or value % 16 == 0), (entry, kind)


def test_every_allocation_may_fail(made: tuple[Path, Any], fake_gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever it is: the error says so, and what came before is given back."""
    fake = fake_gpu(CUDA)
    monkeypatch.setattr(gpu, "find_driver", lambda: (fake.driver(), ""))
    load(made[0], **OPTIONS).close()
    count = fake.get("allocations")
    assert count > 20
    for number in (1, 2, count // 2, count):
        fake.set("allocations", 0)
        fake.set("fail", number)
        with pytest.raises(CapacityError, match=r"The GPU has no \d+ bytes for"):
            load(made[0], strict=True, **OPTIONS)
        assert fake.report() == ""
