"""The command line: what each command prints, and how it fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mixplan import cli
from mixplan.cli import main


def _invoke(*arguments: object, **kwargs: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], **kwargs)  # type: ignore[arg-type]


def _json(*arguments: object) -> dict[str, object]:
    result = _invoke(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)  # type: ignore[no-any-return]


def test_compile_then_inspect_tell_the_same_bits(tiny_llama_dir: Path, tmp_path: Path) -> None:
    plan = tmp_path / "a.plan"
    report = _json("compile", tiny_llama_dir, "-o", plan, "--scheme", "W4A16", "--override", "lm_head=W8A16", "--isa", "native")
    assert report["effective_bits"] == pytest.approx(_json("inspect", plan)["facts"]["effective bits"], abs=1e-4)  # type: ignore[index]
    layers = {layer["layer"]: layer["scheme"] for layer in _json("inspect", plan)["layers"]}  # type: ignore[index,attr-defined]
    assert layers["lm_head"] == "W8A16"


def test_compile_prints_a_table_with_bits_and_placement(tiny_llama_dir: Path, tmp_path: Path) -> None:
    result = _invoke("compile", tiny_llama_dir, "-o", tmp_path / "a.plan", "--scheme", "FP32", "--isa", "native")
    assert result.exit_code == 0, result.output
    for words in ("effective bits", "requested", "achieved", "Placement", "cpu"):
        assert words in result.stdout


def test_run_streams_and_sums_up(tiny_llama_plan: Path) -> None:
    result = _invoke("run", tiny_llama_plan, "hello", "-n", 4, "--stats")
    assert result.exit_code == 0, result.output
    for words in ("plan size", "peak memory", "time to first token", "tokens/s"):
        assert words in result.stderr


def test_run_reads_standard_input(tiny_llama_plan: Path) -> None:
    said = _invoke("run", tiny_llama_plan, "-n", 3, "--json", "--no-chat", input="hello")
    given = _invoke("run", tiny_llama_plan, "hello", "-n", 3, "--json", "--no-chat")
    assert json.loads(said.stdout)["token_ids"] == json.loads(given.stdout)["token_ids"]


def test_run_puts_the_prompt_into_the_chat_template(tiny_llama_plan: Path) -> None:
    chat = _json("run", tiny_llama_plan, "hello", "-n", 2)
    plain = _json("run", tiny_llama_plan, "hello", "-n", 2, "--no-chat")
    assert chat["prompt_tokens"] > plain["prompt_tokens"]  # type: ignore[operator]


def test_verify_a_sound_plan(tiny_llama_plan: Path) -> None:
    result = _invoke("verify", tiny_llama_plan)
    assert result.exit_code == 0 and "sound" in result.stdout


def test_verify_finds_a_flipped_byte(tiny_llama_dir: Path, tmp_path: Path) -> None:
    plan = tmp_path / "a.plan"
    assert _invoke("compile", tiny_llama_dir, "-o", plan, "--scheme", "W4A8", "--isa", "native").exit_code == 0
    weights = plan / "weights.safetensors"
    data = bytearray(weights.read_bytes())
    data[-5] ^= 1
    weights.write_bytes(bytes(data))
    result = _invoke("verify", plan)
    assert result.exit_code == 2
    assert "weights.safetensors" in result.stderr and "Traceback" not in result.stderr


def test_passes_and_targets_list_what_there_is() -> None:
    assert "canonical" in _invoke("passes").stdout
    names = [row["name"] for row in _json("targets")["targets"]]  # type: ignore[attr-defined]
    assert names[:3] == ["cpu", "reference", "null"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str) -> None:
    result = _invoke("completion", shell)
    assert result.exit_code == 0 and "_MIXPLAN_COMPLETE" in result.stdout


@pytest.mark.parametrize("command", ["compile", "run", "bench", "inspect", "verify", "passes", "targets", "completion"])
def test_help_teaches(command: str) -> None:
    result = _invoke(command, "--help")
    assert result.exit_code == 0 and len(result.stdout) > 150


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["compile", "/no/such/model", "-o", "x.plan"], "/no/such/model"),
        (["run", "/no/such.plan", "hi"], "/no/such.plan"),
        (["inspect", "/no/such.plan"], "/no/such.plan"),
        (["verify", "/no/such.plan"], "/no/such.plan"),
    ],
)
def test_the_users_mistake_is_one_message_and_exit_code_2(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = _invoke(*arguments)
    assert list(tmp_path.iterdir()) == []
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ") and words in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--scheme", "W5A5"], "W4A16"),
        (["--override", "no.such.layer=W8A16"], "no.such.layer"),
        (["--override", "re:[=W8A16"], "re:["),
        (["--pass", "json:nothing"], "nothing"),
        (["--isa", "avx10"], "avx10"),
        (["--target", "tpu"], "tpu"),
        (["--group-size", "33"], "33"),
    ],
)
def test_a_wrong_option_leaves_nothing_behind(options: list[str], words: str, tiny_llama_dir: Path, tmp_path: Path) -> None:
    result = _invoke("compile", tiny_llama_dir, "-o", tmp_path / "x.plan", *options)
    assert result.exit_code == 2, result.output
    assert words in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_fault_of_ours_exits_with_1(monkeypatch: pytest.MonkeyPatch, tiny_llama_plan: Path) -> None:
    from mixplan.runtime import inspect_plan

    def broken(path: Path) -> dict[str, object]:
        raise ZeroDivisionError(f"at {path.name}")

    monkeypatch.setattr(inspect_plan, "inspect_plan", broken)
    result = _invoke("inspect", tiny_llama_plan)
    assert result.exit_code == 1
    assert "internal error: ZeroDivisionError" in result.stderr and "Traceback" not in result.output


def test_debug_shows_the_traceback() -> None:
    result = _invoke("--debug", "inspect", "/no/such.plan")
    assert isinstance(result.exception, Exception) and not isinstance(result.exception, SystemExit)


def test_the_command_line_imports_nothing_heavy() -> None:
    import subprocess
    import sys

    code = "import sys, mixplan.cli; print([m for m in ('torch', 'numpy', 'rich', 'msgspec') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert cli.__all__ == ["main"]
