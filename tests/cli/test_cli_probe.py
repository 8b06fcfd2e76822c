"""`mixplan probe` as a command: what it prints and writes, and that mistakes end with code 2 and leave nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mixplan.cli import main


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["probe", *map(str, arguments)])


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "notes.txt"
    path.write_text("The keeper wrote down the weather every evening. " * 20, encoding="utf-8")
    return path


def test_probe_writes_and_prints(tiny_llama_dir: Path, text: Path, tmp_path: Path) -> None:
    page, data = tmp_path / "r.html", tmp_path / "r.json"
    result = run(
        tiny_llama_dir, "--text", text, "-o", page, "-o", data, "--tokens", 64, "--window", 32, "--candidates", "W8A16,W4A16:g32,asym"
    )
    assert result.exit_code == 0, result.output
    assert "measured" in result.output and "attention:" in result.output and str(page) in result.output
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    loaded = json.loads(data.read_text(encoding="utf-8"))
    assert loaded["tokens"] == 64 and loaded["windows"] == 2 and loaded["sensitivity"]["schemes"] == ["W8A16", "W4A16:g32,asym"]


def test_json_to_standard_output(tiny_llama_dir: Path, text: Path) -> None:
    result = run(tiny_llama_dir, "--text", text, "--json", "--tokens", 32, "--window", 16)
    assert result.exit_code == 0 and json.loads(result.stdout)["windows"] == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-o", "{tmp}/r.pdf"], "says no format"),
        (["-o", "{tmp}/none/r.html"], "not a folder"),
        (["-o", "{tmp}/notes.txt.json", "-o", "{tmp}/notes.txt.json"], "named twice"),
        (["--window", "100000"], "context"),
        (["--window", "1"], "1"),
        (["--candidates", "W4"], "W4"),
        (["--text", "{tmp}/none.txt"], "does not exist"),
        (["--text", "{tmp}/latin.txt"], "UTF-8"),
        (["--text", "{tmp}/empty.txt"], "0 tokens"),
    ],
)
def test_mistakes(tiny_llama_dir: Path, text: Path, tmp_path: Path, arguments: list[str], words: str) -> None:
    (tmp_path / "latin.txt").write_bytes("Größe".encode("latin-1"))
    (tmp_path / "empty.txt").write_bytes(b"")
    before = sorted(path.name for path in tmp_path.iterdir())
    given = [argument.format(tmp=tmp_path) for argument in arguments]
    result = run(tiny_llama_dir, *(() if "--text" in given else ("--text", text)), *given)
    assert result.exit_code == 2 and words in result.output, result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_no_model(text: Path, tmp_path: Path) -> None:
    result = run(tmp_path / "none", "--text", text, "-o", tmp_path / "r.html")
    assert result.exit_code == 2 and not (tmp_path / "r.html").exists()


def test_existing_report(tiny_llama_dir: Path, text: Path, tmp_path: Path) -> None:
    page = tmp_path / "r.html"
    page.write_text("old", encoding="utf-8")
    result = run(tiny_llama_dir, "--text", text, "-o", page)
    assert result.exit_code == 2 and "--force" in result.output and page.read_text(encoding="utf-8") == "old"
