"""The script that checks and times all on a GPU, at its smallest sizes in the interpreter: it must be ready when a GPU is at hand."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import mixplan

ROOT = Path(mixplan.__file__).parent


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed: pip install 'mixplan[gpu]'")
def test_the_check_runs(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.gpu_check", "--smoke"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    for row in ("torch bf16", "W4A16", "W8A16", "W8A8", "FP8"):
        assert f"{row:<12}" in done.stdout and "of bandwidth" in done.stdout
    assert "decode    batch   2" in done.stdout and "prefill   batch   1" in done.stdout
