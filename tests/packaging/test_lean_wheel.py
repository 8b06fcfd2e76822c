"""The built wheel, installed with the base dependencies alone, runs a plan: no torch, no compiler, no checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCKED = ("torch", "triton", "onnx", "jinja2", "transformers", "scipy", "ziglang")


def _run(*command: str | Path, **kwargs: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **kwargs)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def lean_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with the wheel and what it requires, and nothing else."""
    folder = tmp_path_factory.mktemp("lean")
    _run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder / "dist", ROOT)
    _run(sys.executable, "-m", "venv", folder / "venv")
    python = folder / "venv" / "bin" / "python"
    wheel = next((folder / "dist").glob("*.whl"))
    _run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--constraint", ROOT / "constraints.txt", wheel)
    return python


def test_the_lean_install_runs_a_plan(lean_python: Path, tiny_llama_plan: Path) -> None:
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    code = f"""
import json, sys
import mixplan.runtime as runtime
with runtime.load({str(tiny_llama_plan)!r}) as model:
    logits = model.step([1, 2, 3], [0, 1, 2], [0, 0, 0])
print(json.dumps(dict(shape=logits.shape, file=runtime.__file__, loaded=[m for m in {BLOCKED!r} if m in sys.modules])))
"""
    done = _run(lean_python, "-c", code, env=env, cwd=lean_python.parent)
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["shape"][0] == 1
    assert said["loaded"] == []
    assert str(ROOT) not in said["file"]


def test_commands_say_which_extra_they_need(lean_python: Path, tmp_path: Path) -> None:
    mixplan = lean_python.parent / "mixplan"
    done = subprocess.run([mixplan, "compile", str(tmp_path), "-o", str(tmp_path / "x.plan")], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'mixplan[compile" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_lean_install_inspects_a_plan(lean_python: Path, tiny_llama_plan: Path) -> None:
    done = _run(lean_python.parent / "mixplan", "inspect", tiny_llama_plan, "--json")
    assert json.loads(done.stdout)["layers"]


def test_the_lean_install_benchmarks_a_plan(lean_python: Path, tiny_llama_plan: Path) -> None:
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    few = ("--requests", "4", "--concurrency", "3", "--rounds", "1", "--launches", "1", "--phases", "cold,steady,stress")
    profile = ("--profile", "--context", "8", "--prefill", "8")
    done = _run(lean_python.parent / "mixplan", "bench", tiny_llama_plan, *few, *profile, "--json", env=env, cwd=lean_python.parent)
    said = json.loads(done.stdout)
    assert set(said["phases"]) == {"cold", "steady", "stress"} and len(said["profile"]) == 2
    assert said["hardware"]["read_bandwidth"]["by"] == "numpy"
    assert "no ceilings are measured" in done.stderr
