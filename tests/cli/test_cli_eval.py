"""`mixplan eval`: figures on a text, and what is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mixplan.cli import main

_TEXT = "The keeper wrote down the weather every evening, because a record with a gap in it is only half a record. " * 4


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(_TEXT, encoding="utf-8")
    return path


def _eval(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["eval", *map(str, arguments)])


def test_perplexity_alone_needs_no_torch(tiny_llama_plan: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("mixplan.compiler.evaluation")]:
        monkeypatch.delitem(sys.modules, name)
    done = _eval(tiny_llama_plan, "--text", text, "--windows", 2, "--context", 50, "--json")
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    assert data["windows"] == 2 and data["context"] == 50 and len(data["position_loss"]) == 49 and data["against"] is None
    assert 100 < data["perplexity"] < 5000 and data["placement"][0]["device"] == "cpu"
    assert not [name for name in sys.modules if name.startswith("mixplan.compiler.evaluation.")]
    done = _eval(tiny_llama_plan, "--text", text, "--context", 50)
    assert done.exit_code == 0 and "8 of 50 tokens" in done.stdout and "Loss by position" in done.stdout and "33 to 49" in done.stdout


def test_against_the_original(tiny_llama_plan: Path, tiny_llama_dir: Path, text: Path) -> None:
    arguments = (tiny_llama_plan, "--text", text, "--against", tiny_llama_dir, "--windows", 1, "--context", 64)
    done = _eval(*arguments, "--json")
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    assert data["against"] == "tiny-llama" and data["warnings"] == []
    assert data["kld_mean"] < 1e-9 and data["same_top"] == 1 and len(data["positions"]) == 64
    assert data["perplexity"] == pytest.approx(data["reference_perplexity"], rel=1e-5)
    assert data["kld_error"] is None  # one window says nothing of the error
    done = _eval(*arguments)
    for words in ("perplexity of the original", "KLD, 99th percentile", "same most probable token", "KLD by position", "32 to 63"):
        assert words in done.stdout


def test_another_original_is_a_warning(tiny_llama_plan: Path, tiny_llama_dir: Path, text: Path, tmp_path: Path) -> None:
    import shutil

    from mixplan.compiler.frontends.tiny import tiny_model

    other = tmp_path / "other"
    shutil.copytree(tiny_llama_dir, other)
    tiny_model("llama", seed=1, vocab_size=512, bos_token_id=0, eos_token_id=1, pad_token_id=1).save_pretrained(other)
    done = _eval(tiny_llama_plan, "--text", text, "--against", other, "--windows", 1, "--context", 16, "--json")
    assert done.exit_code == 0, done.output
    assert "not the checkpoint that the plan was compiled from" in done.stderr and json.loads(done.stdout)["kld_mean"] > 1e-3
    tiny_model("llama").save_pretrained(other)
    done = _eval(tiny_llama_plan, "--text", text, "--against", other, "--windows", 1, "--context", 16)
    assert done.exit_code == 2 and "vocabulary" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give --text, --tasks or both"),
        (["--against", "x"], "--against needs --text"),
        (["--text", "none.txt"], "does not exist"),
        (["--text", "TEXT", "--limit", "3"], "--limit needs --tasks"),
        (["--text", "TEXT", "--chat"], "--chat needs --tasks"),
        (["--text", "TEXT", "--windows", "0"], "0 is not in the range"),
        (["--text", "TEXT", "--windows", "9", "--context", "64"], "9 windows of 64 need"),
        (["--text", "TEXT", "--context", "100000"], "need 100,000"),
        (["--text", "TEXT", "--windows", "1", "--context", "9", "--against", "no-such-model"], "no such file or directory"),
        (["--text", "TEXT", "--device", "gpu"], "device"),
        (["--text", "BINARY"], "not UTF-8"),
        (["--tasks", " , "], "--tasks names no task"),
    ],
)
def test_what_is_refused(arguments: list[str], message: str, tiny_llama_plan: Path, text: Path, tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe" * 4000)
    places = {"TEXT": str(text), "BINARY": str(tmp_path / "binary")}
    done = _eval(tiny_llama_plan, *[places.get(argument, argument) for argument in arguments])
    assert done.exit_code == 2 and message in done.output


def test_no_plan(text: Path, tmp_path: Path) -> None:
    done = _eval(tmp_path / "none.plan", "--text", text)
    assert done.exit_code == 2 and "no plan at" in done.stderr


def test_tasks_without_lm_eval(tiny_llama_plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.delitem(sys.modules, "mixplan.compiler.evaluation.harness", raising=False)
    done = _eval(tiny_llama_plan, "--tasks", "arc_easy")
    assert done.exit_code == 2 and "pip install 'mixplan[eval]'" in done.stderr
