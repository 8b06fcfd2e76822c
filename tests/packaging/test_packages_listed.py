"""setup.cfg lists every package: an editable install would hide one that is missing from the wheel."""

from __future__ import annotations

import configparser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CODE = ("compiler", "passes", "runtime", "targets")


def _cfg() -> configparser.ConfigParser:
    cfg = configparser.ConfigParser()
    cfg.read(ROOT / "setup.cfg", encoding="utf-8")
    return cfg


def test_every_folder_with_python_is_a_listed_package() -> None:
    listed = set(_cfg()["options"]["packages"].split())
    folders = {path.parent.relative_to(ROOT) for top in CODE for path in (ROOT / top).rglob("*.py")}
    found = {"mixplan", *("mixplan." + ".".join(folder.parts) for folder in folders)}
    assert listed == found


def test_every_package_has_an_init() -> None:
    folders = {path.parent for top in CODE for path in (ROOT / top).rglob("*.py")}
    assert not [str(folder) for folder in folders if not (folder / "__init__.py").exists()]


def test_every_template_is_package_data() -> None:
    patterns = _cfg()["options.package_data"]["mixplan"].split()
    wanted = {path for top in CODE for ext in ("j2", "h", "md") for path in (ROOT / top).rglob(f"*.{ext}")}
    shipped = {path for pattern in patterns for path in ROOT.glob(pattern)}
    assert wanted <= shipped, sorted(str(path.relative_to(ROOT)) for path in wanted - shipped)
