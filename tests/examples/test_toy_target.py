"""`examples/toy_target`, installed as a user would: its device shares plans with others, and gives what the reference gives."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from mixplan.cli import main
from mixplan.compiler.pipeline import compile as compile_plan
from mixplan.runtime import load
from mixplan.runtime.plugins import installed
from mixplan.targets.registry import get_target, target_names

SOURCE = Path(__file__).resolve().parents[2] / "examples" / "toy_target"
TOKENS = [5, 300, 17, 211]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that the package was installed into, on this process's path. Built from a copy: builds leave files behind."""
    folder = tmp_path_factory.mktemp("toy")
    shutil.copytree(SOURCE, folder / "source", ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    command += ["--no-build-isolation", "--target", str(folder / "site"), str(folder / "source")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder / "site")
        _forget()
        yield folder / "site"
    _forget()


def _forget() -> None:
    installed.cache_clear()
    get_target.cache_clear()


@pytest.fixture(scope="module")
def shared(site: Path, tiny_llama_dir: Path) -> Path:
    """A plan of the toy and the reference device."""
    plan = site.parent / "shared.plan"
    compile_plan(tiny_llama_dir, output=plan, scheme="FP32", targets=("toy",))
    return plan


def test_it_is_short() -> None:
    lines = [len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCE.rglob("*") if path.suffix in (".py", ".toml")]
    assert len(lines) == 4 and sum(lines) < 150


def _check(plan: Path, other: str) -> None:
    at, slots = list(range(len(TOKENS))), [0] * len(TOKENS)
    with load(plan, device="reference") as reference:
        wanted = reference.step(TOKENS, at, slots, "all")
    with load(plan, trust=True) as model:
        got = model.step(TOKENS, at, slots, "all")
        assert {place.device for place in model.placement} == {"toy", other}
        ran = {node.op for region in model.plan.regions if region.device == "toy" for node in model.plan.nodes[region.start : region.stop]}
        assert "linear" in ran and ran <= {"linear", "rms_norm"}
        metrics = model.metrics().regions
        assert all(metrics[region.name]["steps"] == 1.0 for region in model.plan.regions if region.device == "toy")
        reasons = {region.reason for region in model.plan.regions if region.device == "reference"}
        assert any("toy: the toy has no attention" in reason for reason in reasons) == (other == "reference")
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_it_shares_a_model_with_the_reference(shared: Path) -> None:
    assert "toy" in target_names()
    _check(shared, "reference")


def test_it_shares_a_model_with_the_cpu(site: Path, tiny_llama_dir: Path, tmp_path: Path) -> None:
    compile_plan(tiny_llama_dir, output=tmp_path / "p", scheme="FP32", targets=("toy", "cpu"), isa=("native",))
    _check(tmp_path / "p", "cpu")


def test_quantized_weights_are_refused_with_the_reason(site: Path, tiny_llama_dir: Path, tmp_path: Path) -> None:
    report = compile_plan(tiny_llama_dir, output=tmp_path / "p", scheme="W4A16", targets=("toy",), overrides=("lm_head=FP32",))
    assert any("the toy multiplies f32 by f32 alone; the weight is i4" in reason for _, _, reason in report.refused)
    assert {region.device for region in report.regions} == {"toy", "reference"}


@pytest.mark.parametrize("there", [True, False])
def test_a_process_that_only_runs_plans_finds_the_device(site: Path, shared: Path, there: bool) -> None:
    code = f"""
import json, sys
from mixplan.runtime import load
with load({str(shared)!r}) as model:
    model.step([1, 2], [0, 1], [0, 0])
    print(json.dumps([sorted({{p.device for p in model.placement}}), [m for m in ("torch", "toy_target.target") if m in sys.modules]]))
"""
    path = [part for part in sys.path if there or part != str(site)]
    # Without a compiler the CPU cannot run the toy's regions either.
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path), **({} if there else {"MIXPLAN_CC": "/nowhere/gcc"})}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [["reference", "toy"] if there else ["reference"], []]
    assert ("There is no device 'toy'" in done.stderr) != there


def test_a_level_that_the_toy_does_not_know(site: Path) -> None:
    done = CliRunner().invoke(main, ["targets", "--conformance", "toy", "--ops", "rms_norm", "--isa", "toy9"])
    assert done.exit_code == 2 and "the toy has no level 'toy9'.\nLevels: toy1" in done.stderr
    assert get_target("toy").resolve_levels(("toy1",)) == get_target("toy").resolve_levels(()) == ("toy1",)


def test_it_conforms_where_it_says_yes(site: Path) -> None:
    done = CliRunner().invoke(main, ["targets", "--conformance", "toy", "--ops", "linear,rms_norm,attention", "--json"])
    said = json.loads(done.output)
    assert done.exit_code == 0 and said["failed"] == 0
    assert [(row["op"], row["passed"]) for row in said["ops"]] == [("linear", 2), ("rms_norm", 5), ("attention", 0)]
    assert said["ops"][2]["reasons"] == ["the toy has no attention"]
