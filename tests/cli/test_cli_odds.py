"""The command line with odd bytes, in odd terminals, and interrupted."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from mixplan.cli import main
from mixplan.runtime import run_prompt as run_prompt_module
from mixplan.runtime.plan_io import read_plan, write_manifest
from mixplan.runtime.plan_json import encode_plan


def test_text_of_a_plan_does_not_steer_the_terminal(tiny_llama_plan: Path, tmp_path: Path) -> None:
    odd = tmp_path / "odd.plan"
    shutil.copytree(tiny_llama_plan, odd)
    with read_plan(odd) as loaded:
        first, *rest = loaded.plan.decisions
        data = encode_plan(
            msgspec.structs.replace(
                loaded.plan, name="[/b] [red]:smile:", decisions=(msgspec.structs.replace(first, layer="[/i]\x1b[2J"), *rest)
            )
        )
    (odd / "plan.json").write_bytes(data)
    (odd / "plan.sha256").write_text(f"{hashlib.sha256(data).hexdigest()}  plan.json\n")
    result = CliRunner().invoke(main, ["inspect", str(odd)])
    assert result.exit_code == 0, result.output
    assert "[/b] [red]:smile:" in result.stdout and "[/i]\ufffd[2J" in result.stdout and "\x1b" not in result.stdout


def test_a_prompt_that_is_not_utf8(tiny_llama_plan: Path) -> None:
    for arguments, given in (([os.fsdecode(b"caf\xe9")], b""), ([], b"caf\xe9")):
        result = CliRunner().invoke(main, ["run", str(tiny_llama_plan), *arguments, "--device", "null"], input=given)
        assert result.exit_code == 2, result.output
        assert "The prompt is not UTF-8" in result.stderr


def test_a_prompt_in_a_locale_without_its_characters(tiny_llama_plan: Path) -> None:
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [
        sys.executable,
        "-m",
        "mixplan.cli",
        "run",
        str(tiny_llama_plan),
        "caf\u00e9 \U0001f600".encode(),
        "-n",
        "2",
        "--device",
        "null",
    ]
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_text_to_verify_on_that_is_not_utf8(tiny_llama_plan: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"\xff\xfe")
    result = CliRunner().invoke(main, ["verify", str(tiny_llama_plan), "model", "--text", str(tmp_path / "text")])
    assert result.exit_code == 2 and "is not UTF-8" in result.stderr


def test_interrupted(tiny_llama_plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run_prompt_module, "run_prompt", interrupt)
    result = CliRunner().invoke(main, ["run", str(tiny_llama_plan), "hello"])
    assert result.exit_code == 130 and "interrupted" in result.stderr


def test_a_reader_that_leaves_early_is_no_error(tiny_llama_plan: Path) -> None:
    command = f"set -o pipefail; {sys.executable} -m mixplan.cli inspect {tiny_llama_plan} --json | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=False)
    assert done.returncode == 0 and not done.stderr


def test_a_kernel_that_was_cut_short(tiny_llama_plan: Path, tmp_path: Path) -> None:
    """Its digest is right and the user trusts it: another takes over, or --strict says no."""
    plan = tmp_path / "cut.plan"
    shutil.copytree(tiny_llama_plan, plan)
    for kernel in (plan / "kernels").iterdir():
        kernel.write_bytes(kernel.read_bytes()[:9000])
    with read_plan(tiny_llama_plan) as loaded:
        write_manifest(plan, loaded.plan)
    command = [sys.executable, "-m", "mixplan.cli", "run", str(plan), "Hi", "-n", "4", "--trust", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("instead of the plan's") == 1 and "it is cut short: 9000 bytes" in done.stderr
    said = json.loads(done.stdout)
    whole = CliRunner().invoke(main, ["run", str(tiny_llama_plan), "Hi", "-n", "4", "--json"])
    assert said["token_ids"] == json.loads(whole.stdout)["token_ids"]
    assert [row["failed"] for row in said["fallbacks"]] == [f"the plan's {said['placement'][0]['isa']} kernels"]
    for arguments in (["run", str(plan), "Hi"], ["bench", str(plan), "--quick", "--phases", "steady"]):
        result = CliRunner().invoke(main, [*arguments, "--trust", "--strict"])
        assert result.exit_code == 2, result.output
        assert "strict forbids another in its place" in result.stderr
