"""Everything a run needs on disk, made where it is missing: the checkpoint, plans, and the peers' own forms of the same weights."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from benchmarks.compare.client import ROOT
from benchmarks.compare.stacks import Stack

__all__ = ["prepare"]

# Where the product's code is newer than a plan, the plan is made anew.
_PRODUCT = ("compiler", "passes", "targets", "runtime")


def _run(command: Sequence[str], log: Path) -> None:
    with log.open("a", encoding="utf-8") as out:
        out.write(f"$ {' '.join(command)}\n")
        out.flush()
        done = subprocess.run(
            command, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT, check=False, env={**os.environ, "HF_HUB_OFFLINE": "1"}
        )
    if done.returncode:
        words = log.read_text(encoding="utf-8", errors="replace").splitlines()[-10:]
        raise SystemExit("\n".join([f"failed: {' '.join(command)} (all of it in {log})", *words]))


def _newest_source() -> float:
    files = (file for top in _PRODUCT for pattern in ("*.py", "*.h", "*.j2") for file in (ROOT / top).rglob(pattern))
    return max(file.stat().st_mtime for file in files)


def prepare(
    stacks: Sequence[Stack],
    work: Path,
    weights: str,
    pythons: dict[str, str],
    turn: Callable[[], AbstractContextManager[Any]],
    say: Callable[[str], None],
) -> None:
    """Fill the folder `work`. `weights`: "offgrid" or "sample" (see convert/checkpoint.py). turn: entered around each step."""
    work.mkdir(parents=True, exist_ok=True)
    log, checkpoint = work / "prepare.log", work / "checkpoint"

    def make(what: str, target: Path, command: Sequence[str]) -> None:
        if target.exists():
            return
        say(f"making {what}")
        with turn():
            try:
                _run(command, log)
            except BaseException:
                # Half of a form must not be taken for the whole next time.
                shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)
                raise

    module = [sys.executable, "-m", "benchmarks.compare.convert.checkpoint"]
    make(f"the checkpoint ({weights})", checkpoint / "tokenizer.json", [*module, str(checkpoint), "--weights", weights])
    for stack in stacks:
        target, python = work / stack.model, pythons[stack.family]
        if stack.family == "mixplan":
            if target.exists() and (target / "plan.json").stat().st_mtime < _newest_source():
                shutil.rmtree(target)
            command = [python, "-m", "mixplan.cli", "compile", str(checkpoint), "-o", str(target), *stack.compile, "--isa", "native"]
            make(stack.name, target, command)
        elif stack.family == "llama.cpp":
            command = [python, "-m", "benchmarks.compare.convert.llama", str(checkpoint), str(target.parent), "--format", target.stem]
            make(stack.name, target, command)
        elif stack.family == "OpenVINO":
            command = [python, "-m", "benchmarks.compare.convert.openvino", str(checkpoint), str(target.parent), "--format", target.name]
            make(stack.name, target, command)
