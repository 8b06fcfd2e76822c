"""Every example runs as its docstring says, and is short."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def _run(name: str, *arguments: Path, cwd: Path) -> str:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(EXAMPLES)}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *map(str, arguments)], cwd=cwd, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_quickstart(tiny_llama_dir: Path, tmp_path: Path) -> None:
    out = _run("quickstart.py", tiny_llama_dir, tmp_path / "q.plan", cwd=tmp_path)
    assert "bits per weight" in out and "runs on cpu" in out


def test_ragged_steps(tiny_llama_plan: Path, tmp_path: Path) -> None:
    out = _run("ragged_steps.py", tiny_llama_plan, cwd=tmp_path)
    assert "prefill: (2, " in out and "lengths: 9 7" in out


def test_my_pass(tiny_llama_dir: Path, tmp_path: Path) -> None:
    out = _run("my_pass.py", tiny_llama_dir, cwd=tmp_path)
    assert "plain: 32.0" in out and "rewrites 2" in out


def test_module_in_memory(tmp_path: Path) -> None:
    out = _run("module_in_memory.py", tmp_path / "m.plan", cwd=tmp_path)
    assert float(out.split()[-1]) < 1e-4


def test_mixed_formats(tiny_llama_dir: Path, tmp_path: Path) -> None:
    out = _run("mixed_formats.py", tiny_llama_dir, tmp_path / "x.plan", cwd=tmp_path)
    assert "W8A8" in out and "W8A16" in out and "W4A16:g64" in out


def test_kernels_once(tiny_llama_dir: Path, tmp_path: Path) -> None:
    out = _run("kernels_once.py", tiny_llama_dir, cwd=tmp_path)
    assert "mul sin square div add; off by" in out and "in the model: 2 times" in out


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < 60
