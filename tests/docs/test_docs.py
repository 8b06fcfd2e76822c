"""Every page runs as written, is in the index, and links to what exists; generated pages are up to date; reference pages are complete."""

from __future__ import annotations

import dataclasses
import inspect
import re
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

import mixplan
from mixplan.compiler.report import CompileReport
from mixplan.runtime import Model, errors, load
from mixplan.runtime.sampling import SamplingParams

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
LINKED = [*PAGES, *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))]
_LINK = re.compile(r"\[[^\]\n]+\]\(([^)\s]+)\)")
_CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.M | re.S)


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def _runnable(page: Path) -> bool:
    return re.search(r"^```(bash|python)", page.read_text(encoding="utf-8"), re.M) is not None


@pytest.mark.parametrize("page", [page for page in PAGES if _runnable(page)], ids=_name)
def test_page_runs(page: Path, run_page: Callable[[Path], None]) -> None:
    run_page(page)


@pytest.mark.parametrize("page", LINKED, ids=_name)
def test_links_resolve(page: Path) -> None:
    for link in _LINK.findall(_CODE.sub("", page.read_text(encoding="utf-8"))):
        if not link.startswith(("https://", "http://", "#")):
            assert (page.parent / link.partition("#")[0]).exists(), f"{_name(page)} links to {link}"


def test_index_has_every_page() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    for page in PAGES:
        if page != DOCS / "README.md":
            assert f"({page.relative_to(DOCS)})" in index


@pytest.mark.parametrize("name", ["cli.md", "passes.md"])
def test_generated_pages_are_current(name: str) -> None:
    render = runpy.run_path(str(DOCS / "generate.py"))["PAGES"][name]
    assert (DOCS / "reference" / name).read_text(encoding="utf-8") == render(), "run: python docs/generate.py"


def test_ops_page_is_current() -> None:
    from mixplan.runtime.ops.pages import render

    assert (DOCS / "reference" / "ops.md").read_text(encoding="utf-8") == render(), (
        "run: python -m mixplan.runtime.ops > docs/reference/ops.md"
    )


def test_python_page_is_complete() -> None:
    page = (DOCS / "reference" / "python.md").read_text(encoding="utf-8")
    names = [*inspect.signature(mixplan.compile).parameters, *inspect.signature(load).parameters]
    names += [field.name for kind in (CompileReport, SamplingParams) for field in dataclasses.fields(kind)]
    names += [name for name in vars(Model) if not name.startswith("_") and name != "loaded"]
    missing = [name for name in names if f"`{name}" not in page]
    assert not missing


def test_errors_page_is_complete() -> None:
    page = (DOCS / "reference" / "errors.md").read_text(encoding="utf-8")
    for name in errors.__all__:
        kind = getattr(errors, name)
        assert f"| `{name}` | `{kind.__bases__[0].__name__}` | {kind.exit_code} |" in page


def test_shown_pass_is_the_example() -> None:
    page = (DOCS / "how-to" / "write-a-pass.md").read_text(encoding="utf-8")
    example = runpy.run_path(str(ROOT / "examples" / "my_pass.py"))["relu_for_silu"]
    assert inspect.getsource(example) in page
