"""Tuning of tiles: on a driver whose clock the test sets, with builds that come to nothing, and in Triton's interpreter."""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixplan.compiler.pipeline import compile as compile_plan
from mixplan.runtime.devices.gpu_api import CUDA
from mixplan.runtime.devices.gpu_driver import find_driver
from mixplan.runtime.devices.gpu_native import DriverBackend
from mixplan.runtime.devices.gpu_program import Program, decode_program
from mixplan.runtime.errors import InternalError, OptionError, UnsupportedError
from mixplan.runtime.plan_io import read_plan
from mixplan.targets.base import CompileOptions
from mixplan.targets.conformance.cases.table import cases_of
from mixplan.targets.conformance.plans import case_plan
from mixplan.targets.gpu.arch import ARCHS
from mixplan.targets.gpu.build import compiler_identity
from mixplan.targets.gpu.builds import Build, BuildRequest
from mixplan.targets.gpu.target import GpuTarget
from mixplan.targets.gpu.tile import Tile
from mixplan.targets.gpu.tuning import cache as cache_module
from mixplan.targets.gpu.tuning import run
from mixplan.targets.gpu.tuning.bench import Sample
from mixplan.targets.gpu.tuning.cache import TileCache
from mixplan.targets.gpu.tuning.search import Timed, search
from mixplan.targets.gpu.tuning.work import Work, find_work

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed: pip install 'mixplan[gpu]'")


@pytest.fixture
def here(fake_gpu: Any, fake_driver: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """(the driver of an sm_90 GPU, the builds that it runs). Products like 128 columns and 8 warps, attention 4 parts of a context."""
    fake, builds = fake_gpu(CUDA), fake_driver.Builds()
    fake.set("room", 4 << 20)  # to write more than a cache's size between rounds would take the host long

    def milliseconds(entry: str, grid: tuple[int, ...], threads: int) -> float:
        constants = builds.requests[entry].constants
        if entry.startswith("gemm"):
            return 1.0 + abs(math.log2(constants["BLOCK_N"] / 128)) + 0.1 * abs(math.log2(threads / 256))
        return 1.0 + abs(math.log2(constants["SPLITS"] / 4)) if "SPLITS" in constants else 0.01

    fake.milliseconds = milliseconds
    driver = fake.driver()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for module in ("target", "tuning.run"):
        name = "build_all" if module == "target" else "build_each"
        monkeypatch.setattr(f"mixplan.targets.gpu.{module}.{name}", builds)
        monkeypatch.setattr(f"mixplan.targets.gpu.{module}.compiler_identity", lambda: "none 1")
    monkeypatch.setattr(run, "find_driver", lambda: (driver, ""))
    return fake, builds


def _program(plan: Path) -> Program:
    with read_plan(plan) as loaded:
        (path,) = (loaded.plan.regions[0].kernels[arch] for arch in ("sm_90",))
        return decode_program(loaded.read_file(path), path)[0]


def test_a_tuned_plan(here: tuple[Any, Any], tiny_llama_dir: Path, tmp_path: Path) -> None:
    fake, _ = here
    options = {"scheme": "W4A8", "targets": ("gpu",), "isa": ("sm_90", "gfx942"), "max_step_tokens": 16}
    compile_plan(tiny_llama_dir, output=tmp_path / "tuned.plan", tune=True, **options)
    assert fake.report() == ""  # every sample gave back what it took
    tuned, timed = _program(tmp_path / "tuned.plan"), len(fake.launches)
    products = [kernel for kernel in tuned.kernels if kernel.name == "gemm_a8"]
    assert products and {(kernel.constants["BLOCK_N"], kernel.warps) for kernel in products} == {(128, 8)}
    (decode,) = (kernel for kernel in tuned.kernels if kernel.name == "attention_decode")
    assert decode.constants["SPLITS"] == 4
    # The plan tells what is not the table's, and that the other architecture's are.
    with read_plan(tmp_path / "tuned.plan") as loaded:
        notes, told = [text for text in loaded.plan.rejections if text.startswith("gpu: ")], loaded.plan.provenance.options
    assert told["tune"] == "true"
    wanted = "attention decode f16 16: 16x64, 4 splits, 4 warps, 2 stages; of the table: 16x64, 8 splits, 4 warps, 2 stages"
    assert any(note.endswith(f"tile on Fake GPU (sm_90): {wanted}") for note in notes), notes
    assert any(note.endswith("tiles of gfx942 are the table's: the GPU here is Fake GPU") for note in notes)
    # Again: nothing is timed, and all bytes are the same. Without: the table, nothing else.
    with read_plan(tmp_path / "tuned.plan") as loaded:
        plan, region = loaded.plan, loaded.plan.regions[0]
        kernels = {arch: loaded.read_file(path) for arch, path in region.kernels.items()}
    again = GpuTarget().compile(plan, region, CompileOptions(("sm_90", "gfx942"), tune=True))
    assert len(fake.launches) == timed
    assert again.kernels == kernels and [f"gpu: {region.name}: {note}" for note in again.notes] == notes
    table, _ = decode_program(GpuTarget().compile(plan, region, CompileOptions(("sm_90",))).kernels["sm_90"], "x")
    assert {kernel.constants["BLOCK_N"] for kernel in table.kernels if kernel.name == "gemm_a8"} == {64}


def test_tuning_needs_a_gpu_that_runs_what_is_built(here: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(words: str, **options: Any) -> None:
        with pytest.raises(OptionError, match=words):
            compile_plan("no such checkpoint", output=tmp_path / "x.plan", tune=True, **options)

    wrong("on a GPU that runs sm_80 or gfx942, but the GPU here is Fake GPU, compute capability", targets=("gpu",), isa=("sm_80", "gfx942"))
    wrong("tune is for the GPU, and the target is cpu", targets=("cpu",))
    monkeypatch.setattr(run, "find_driver", lambda: (None, "libcuda.so.1 is not found"))
    wrong(r"there is no GPU: libcuda\.so\.1 is not found", targets=("gpu", "cpu"))


FAST, TABLE = Timed(Tile(16, 128, 64, 2, 8, 4), 1e-5, 2e-5), Timed(Tile(16, 64, 0), 1e-5, 1e-5)


def test_the_cache_keeps_what_was_timed_on_this_gpu_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache = TileCache("sm_90", "Any GPU", "triton 1")
    assert cache.read() == {}
    cache.add({"a": FAST})
    cache.add({"b": TABLE})
    assert cache.read() == {"a": FAST, "b": TABLE}
    cache.add({"a": TABLE})
    assert cache.read() == {"a": TABLE, "b": TABLE}
    assert [path.name for path in cache.path.parent.iterdir()] == [cache.path.name]
    for other in (("sm_80", "Any GPU", "triton 1"), ("sm_90", "Other GPU", "triton 1"), ("sm_90", "Any GPU", "triton 2")):
        assert TileCache(*other).read() == {}
    monkeypatch.setattr(cache_module, "sources_digest", lambda: "other kernels")
    assert cache.read() == {}


@pytest.mark.parametrize(
    "change",
    [
        lambda data: "{",
        lambda data: "[]",
        lambda data: json.dumps({**data, "schema": "mixplan.tiles/9"}),
        lambda data: json.dumps({**data, "tiles": {"a": {**data["tiles"]["a"], "n": 48}}}),
        lambda data: json.dumps({**data, "tiles": {"a": {**data["tiles"]["a"], "warps": True}}}),
        lambda data: json.dumps({**data, "tiles": {"a": {**data["tiles"]["a"], "seconds": -1.0}}}),
        lambda data: json.dumps({**data, "tiles": {"a": {"n": 64}}}),
    ],
)
def test_a_broken_cache_is_told_of_and_written_anew(
    change: Callable[[Any], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache = TileCache("sm_90", "Any GPU", "triton 1")
    cache.add({"a": FAST})
    cache.path.write_text(change(json.loads(cache.path.read_bytes())))
    assert cache.read() == {}
    assert "are left out and timed anew" in caplog.text
    cache.add({"b": TABLE})
    caplog.clear()
    assert cache.read() == {"b": TABLE} and not caplog.text


def test_tiles_that_do_not_do_are_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    """Of eight that would be faster one does not build, one spills, one asks for too much, one does not load, and one computes nonsense."""
    plan = case_plan(next(case for case in cases_of("linear") if "i4" in str(case)), "gpu")
    works = [work for work in find_work(plan, plan.regions[-1], ARCHS["sm_90"]) if work.kind == "small"]
    (work,) = works
    shape = {"n": "BLOCK_N", "k": "BLOCK_K", "m": "BLOCK_M", "split": "SPLIT"}
    taken: list[Tile] = []

    def tile_of(request: BuildRequest) -> Tile:
        return Tile(**{side: int(request.constants[name]) for side, name in shape.items()}, warps=request.warps, stages=request.stages)

    def build(wanted: Sequence[tuple[str, BuildRequest]]) -> list[Build | InternalError]:
        made: list[Build | InternalError] = []
        for _, request in wanted:
            whole = request.kernel.startswith("gemm")
            tile = tile_of(request) if whole else work.table
            if tile.n == 128:
                made.append(InternalError("does not build"))
                continue
            facts = {"spilled": 4 * (tile.k == 32), "shared": 1 << (20 if tile.m == 128 else 10)}
            made.append(Build(json.dumps(asdict(tile)).encode() if whole else b"", "entry", threads=128, registers=32, **facts))
        return made

    def sample(work: Work, program: Program, binaries: bytes) -> Sample:
        tile = Tile(**json.loads(binaries))
        taken.append(tile)
        if tile.warps == 2:
            raise UnsupportedError("does not load")
        wrong = tile.stages == 2
        return Sample(1.0 if tile == work.table else 0.5 if tile.split < 2 else 0.495, {0: np.full(3, 2.0 if wrong else 1.0)})

    with caplog.at_level(logging.DEBUG, "mixplan.tuning"):
        found = search(works, ARCHS["sm_90"], build, sample)
    # n = 32 is the first that does; k = 128, warps = 8 and others are no faster than that, nor is a split by 1%.
    assert found == {work.key: Timed(Tile(64, 32, 64, work.table.split, 4, 3), 0.5, 1.0)}
    assert not [tile for tile in taken if tile.n == 128 or tile.k == 32 or tile.m == 128]
    told = ("does not build", "4 bytes of registers are spilled", "1048576 of 232448 bytes", "does not load", "computes something else")
    assert all(words in caplog.text for words in told)


_DRIVER, _WHY = find_driver()


@pytest.mark.skipif(_DRIVER is None or not _DRIVER.arch, reason=f"no GPU: {_WHY}")
def test_tuning_on_the_gpu_that_is_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are built, timed and compared; a second time nothing is."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert _DRIVER is not None
    arch, cache = ARCHS[_DRIVER.arch], TileCache(_DRIVER.arch, _DRIVER.gpu, compiler_identity())
    plan = case_plan(next(case for case in cases_of("linear") if "i4" in str(case)), "gpu")
    found = run.tune(plan, plan.regions[-1], arch, cache, lambda: DriverBackend(_DRIVER))
    assert found == cache.read() and set(found) == {work.key for work in find_work(plan, plan.regions[-1], arch)}
    assert all(0 < timed.seconds <= timed.table_seconds < 1e-2 for timed in found.values())
    assert run.tune(plan, plan.regions[-1], arch, cache, lambda: pytest.fail("timed again")) == found


INTERPRETED = """
import json, logging, sys
from dataclasses import replace
from mixplan.targets.conformance.cases.table import cases_of
from mixplan.targets.conformance.plans import case_plan
from mixplan.targets.gpu.arch import ARCHS
from mixplan.targets.gpu.torch_backend import TorchBackend
from mixplan.targets.gpu.tuning.bench import Rows, Sampler
from mixplan.targets.gpu.tuning.search import search
from mixplan.targets.gpu.tuning.work import find_work
logging.basicConfig(level=logging.DEBUG, stream=sys.stderr, format="%(name)s %(levelname)s %(message)s")
logging.getLogger().setLevel(logging.WARNING)
logging.getLogger("mixplan.tuning").setLevel(logging.DEBUG)
told = {}
ticks = iter(range(10**6))
def clock(backend, launches):
    backend.seconds(launches)
    return 0.9 ** next(ticks)  # whatever comes later is faster
sampler = Sampler(lambda: TorchBackend(True), clock, Rows(2, 17, 65, 2, 40, 20))
for op, want, axes in (("linear", "i4", ("n", "split")), ("linear_q", "i8", ("k",)), ("attention", "", ("split", "m"))):
    plan = case_plan(next(case for case in cases_of(op) if want in str(case)), "gpu")
    works = [work for work in find_work(plan, plan.regions[-1], ARCHS["jit"]) if work.kind != "small"]
    seen = []
    def sample(*given):
        seen.append(sampler(*given))
        return seen[-1]
    search(works, ARCHS["jit"], None, sample, axes)
    told[op] = [len(works), len(seen), min(float(abs(array).max()) for one in seen for array in one.outputs.values())]
print(json.dumps(told))
"""


def test_tiles_in_the_interpreter_compute_the_same() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-W", "ignore", "-c", INTERPRETED]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    # By op: pieces of work, tiles that ran, and the largest result of the smallest: none is all zeros.
    assert all(ran >= 2 * works and 0.1 < least < 1e6 for works, ran, least in told.values()) and len(told) == 3, told
    assert "computes something else" not in done.stderr and "cannot be tuned" not in done.stderr
