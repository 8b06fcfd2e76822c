"""Where the CPU device takes its kernels from: the plan where it is trusted, our own compiler where it is not, and never anywhere else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixplan.runtime import load
from mixplan.runtime.devices import cpu_library
from mixplan.runtime.devices.cpu import CpuDevice
from mixplan.runtime.devices.cpu_info import runnable_levels
from mixplan.runtime.errors import CapacityError, OptionError, RequestError, UnsupportedError
from mixplan.runtime.hal import CacheSpec, DeviceOptions
from mixplan.runtime.plan_io import read_plan
from mixplan.targets.cpu.isa import default_levels

TOKENS = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7]
TOLERANCE = 2e-5  # one layer of float32 in another order of summation


def _logits(path: Path, **options: Any) -> np.ndarray:
    with load(path, **options) as model:
        whole = model.step(TOKENS, list(range(len(TOKENS))), [7] * len(TOKENS), logits="all")
        again = [model.step([token], [i], [8]) for i, token in enumerate(TOKENS)]
        np.testing.assert_allclose(np.concatenate(again), whole, atol=TOLERANCE)
        return whole


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rebuild is an error."""
    monkeypatch.setattr(cpu_library, "_rebuilt", lambda *a: pytest.fail("the kernels were compiled anew"))


@pytest.mark.parametrize("level", default_levels())
def test_trusted_kernels_run_at_each_level(toy: Any, cpu_plan: Callable[..., Path], no_compiler: None, level: str) -> None:
    if level not in runnable_levels():
        pytest.skip(f"this CPU cannot run {level}")
    path = cpu_plan((level,))
    np.testing.assert_allclose(_logits(path, trust=True, threads=2), toy.logits(TOKENS), atol=TOLERANCE)
    with load(path, trust=True, isa=level) as model:
        assert [(p.device, p.isa) for p in model.placement] == [("cpu", level)]


def test_best_level_of_the_plan_is_taken(cpu_plan: Callable[..., Path], no_compiler: None) -> None:
    levels = runnable_levels()[:2]
    with load(cpu_plan(levels), trust=True) as model:
        assert model.placement[0].isa == levels[0]


def test_untrusted_kernels_are_compiled_anew_and_never_loaded(toy: Any, cpu_plan: Callable[..., Path]) -> None:
    path = cpu_plan((), dict.fromkeys(runnable_levels(), b"not a library"))
    np.testing.assert_allclose(_logits(path, device="cpu"), toy.logits(TOKENS), atol=TOLERANCE)


def test_trusted_plan_without_this_level_is_compiled(toy: Any, cpu_plan: Callable[..., Path]) -> None:
    np.testing.assert_allclose(_logits(cpu_plan(()), trust=True, device="cpu"), toy.logits(TOKENS), atol=TOLERANCE)


def test_without_compiler_the_reference_device_takes_over(
    toy: Any, cpu_plan: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = cpu_plan(())
    monkeypatch.setenv("MIXPLAN_CC", "/nowhere/gcc")
    with pytest.raises(UnsupportedError, match=r"is not trusted .*MIXPLAN_CC is '/nowhere/gcc', which is not a compiler"):
        load(path, device="cpu")
    with load(path) as model:
        assert model.placement[0].device == "reference"
        assert "MIXPLAN_CC" in model.placement[0].reason
        np.testing.assert_allclose(
            model.step(TOKENS, list(range(len(TOKENS))), [0] * len(TOKENS), logits="all"), toy.logits(TOKENS), atol=TOLERANCE
        )


def test_regions_on_different_devices_pass_values(make_toy: Any, tmp_path: Path) -> None:
    toy = make_toy(window=4)
    toy.write(tmp_path / "mixed.plan", ("cpu", "reference", "cpu"))
    np.testing.assert_allclose(_logits(tmp_path / "mixed.plan", threads=2), toy.logits(TOKENS), atol=TOLERANCE)
    with load(tmp_path / "mixed.plan") as model:
        assert [p.device for p in model.placement] == ["cpu", "reference", "cpu"]


def test_a_forked_child_is_told_and_does_not_hang(cpu_plan: Callable[..., Path]) -> None:
    with load(cpu_plan(()), device="cpu", threads=2) as model:
        child = os.fork()
        if child == 0:
            try:
                model.step([1], [0], [0])
                os._exit(1)
            except RequestError:
                model.close()
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert model.step([1], [0], [0]).shape == (1, 37)


def test_wrong_options(cpu_plan: Callable[..., Path]) -> None:
    path = cpu_plan(())
    with pytest.raises(OptionError, match=r"no ISA level 'sse9'.*\nLevels: portable"):
        load(path, device="cpu", isa="sse9")
    with pytest.raises(UnsupportedError, match="cannot run kernels of level arm64" if "portable" in runnable_levels() else "portable"):
        load(path, device="cpu", isa="arm64" if "portable" in runnable_levels() else "portable")
    with pytest.raises(OptionError, match="threads is 0"):
        load(path, device="cpu", threads=0)


def test_kv_cache_beyond_the_address_space(cpu_plan: Callable[..., Path], no_compiler: None) -> None:
    with read_plan(cpu_plan(runnable_levels()[:1])) as plan:
        plan.trusted = True
        with pytest.raises(CapacityError, match=r"bytes for a KV cache of \d+ pages cannot be had"):
            CpuDevice(DeviceOptions()).load(plan, 0, CacheSpec(1 << 50, 32, 1, 1))


def test_rebuild_command_reports(cpu_plan: Callable[..., Path]) -> None:
    command = [sys.executable, "-m", "mixplan.targets.cpu", "rebuild", str(cpu_plan(())), "--isa", "portable", "--region"]
    done = subprocess.run([*command, "nothing"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "has no region 'nothing'" in done.stderr
    assert "Regions: cpu_0" in done.stderr
