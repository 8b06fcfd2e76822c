"""The README opens with the newcomer's two commands, and what it shows works."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

README = Path(__file__).resolve().parents[2] / "README.md"


def test_opens_with_the_two_commands() -> None:
    top = README.read_text(encoding="utf-8")[:300]
    assert 0 < top.index("make demo") < top.index("make test")


def test_runs(run_page: Callable[[Path], None]) -> None:
    run_page(README)
