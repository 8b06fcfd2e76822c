"""Kernels built ahead of time, for every architecture, without a GPU. `python -m mixplan.targets.gpu` builds many more."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixplan.runtime.devices.gpu_api import CUDA, HIP
from mixplan.runtime.devices.gpu_native import DriverBackend
from mixplan.runtime.devices.gpu_program import decode_program
from mixplan.runtime.devices.gpu_region import GpuRegion
from mixplan.runtime.errors import InternalError
from mixplan.runtime.hal import CacheSpec, Step
from mixplan.runtime.plan import Plan, dim_value
from mixplan.runtime.plan_io import read_plan
from mixplan.targets.base import CompileOptions
from mixplan.targets.conformance.cases.table import cases_of
from mixplan.targets.conformance.plans import case_plan, write_case
from mixplan.targets.gpu.arch import ARCHS, DEFAULT
from mixplan.targets.gpu.build import build_all
from mixplan.targets.gpu.builds import BuildRequest, build_key
from mixplan.targets.gpu.selection import selection
from mixplan.targets.gpu.target import GpuTarget
from mixplan.targets.kernel_files import write_kernels

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed: pip install 'mixplan[gpu]'")

# Those with the most registers or shared memory, and those whose code differs most between architectures.
CHOSEN = {
    "sm_80": ("W3A16 asymmetric large", "prefill i8"),
    "sm_90": ("W8A8 large", "FP8 large", "prefill f16"),
    "sm_100": ("W4A16 decode", "chain broadcast"),
    "gfx942": ("W4A16 large", "decode i8", "chain powers"),
}


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of the tests' own, so that they build."""
    return tmp_path_factory.mktemp("cache")


def test_builds_fit_into_registers_and_shared_memory(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(own_cache))
    assert set(CHOSEN) == set(DEFAULT)
    wanted = [(arch, selection(ARCHS[arch])[name]) for arch, names in CHOSEN.items() for name in names]
    builds = build_all(wanted)
    for (arch, request), build in zip(wanted, builds, strict=True):
        assert build.spilled == 0, (arch, request)
        assert build.shared <= ARCHS[arch].shared, (arch, request)
        assert 16 <= build.registers <= 255 if arch.startswith("sm") else build.registers <= 512
        assert build.threads == request.warps * (64 if arch == "gfx942" else 32)
        assert build.data.startswith(b"\x7fELF")
        assert build.entry.encode() in build.data
    monkeypatch.setattr("mixplan.targets.gpu.build._build_share", lambda share: pytest.fail("built again"))
    assert build_all(wanted) == builds


def test_a_region_is_built_and_launched(own_cache: Path, fake_gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the plan to both drivers: one norm of heads, its binary, whose own notes tell what parameters it takes, and what comes back."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(own_cache))
    case = cases_of("rms_norm")[0]
    plan = case_plan(case, "gpu")
    compiled = GpuTarget().compile(plan, plan.regions[-1], CompileOptions(("sm_90", "gfx942", "jit")))
    assert set(compiled.kernels) == {"sm_90", "gfx942", "jit"}
    assert compiled.metadata["spilled"] == []
    assert compiled.kernels == GpuTarget().compile(plan, plan.regions[-1], CompileOptions(("sm_90", "gfx942", "jit"))).kernels
    root = own_cache / "a.plan"
    root.mkdir()
    write_case(root, case, plan, write_kernels(root, plan.regions[-1], compiled))
    for api, arch in ((CUDA, "sm_90"), (HIP, "gfx942")):
        fake = fake_gpu(api)
        with read_plan(root) as loaded:
            program, binaries = decode_program(loaded.read_file(loaded.plan.regions[-1].kernels[arch]), "x")
            (kernel,) = program.kernels
            assert kernel.entry == "norm"
            backend = DriverBackend(fake.driver())
            region = GpuRegion(loaded, len(plan.regions) - 1, CacheSpec(4, 32, 2, 2), backend, program, binaries)
            made = region.run(_STEP, _ones(plan))
            ((entry, grid, threads, shared, parameters),) = fake.launches
            (output,) = plan.regions[-1].outputs
            assert (entry, threads, shared) == ("norm", kernel.threads, kernel.shared)
            assert grid == (made[output].size // int(kernel.constants["K"]), 1, 1)
            assert len(parameters) == sum(bool(kind) for kind in kernel.types) + 2
            assert all(parameters[:-2]) and parameters[-2:] == (0, 0)
            np.testing.assert_array_equal(made[output], 0.0)  # the driver's kernels do nothing
            region.close()
        assert fake.report() == ""


_SLOTS = np.zeros(3, np.int32)
_STEP = Step(_SLOTS, np.arange(3, dtype=np.int32), _SLOTS, np.zeros(1, np.int32), _SLOTS + 3, np.zeros((2, 2), np.int32))


def _ones(plan: Plan) -> dict[int, np.ndarray]:
    inputs = plan.regions[-1].inputs
    return {value: np.ones([dim_value(dim, tokens=3, rows=1) for dim in plan.values[value].shape], np.float32) for value in inputs}


def test_a_kernel_that_does_not_build_says_why(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(own_cache))
    wrong = BuildRequest("softmax", ("*fp32", "*fp32"), {"K": 100, "LOG": False, "BLOCK": 100})
    with pytest.raises(InternalError, match=r"softmax does not build for sm_80 .*power of 2"):
        build_all([("sm_80", wrong)])


def test_keys_change_with_all_that_matters() -> None:
    base = BuildRequest("softmax", ("*fp32", "*fp32"), {"K": 100, "BLOCK": 128})
    others = [
        BuildRequest("topk", base.types, base.constants),
        BuildRequest("softmax", ("*fp32", "*fp16"), base.constants),
        BuildRequest("softmax", base.types, {"K": 101, "BLOCK": 128}),
        BuildRequest("softmax", base.types, base.constants, warps=8),
        BuildRequest("softmax", base.types, base.constants, stages=2),
    ]
    keys = [build_key(base, "sm_80", "c 1"), build_key(base, "sm_90", "c 1"), build_key(base, "sm_80", "c 2")]
    keys += [build_key(other, "sm_80", "c 1") for other in others]
    assert len(set(keys)) == len(keys)
