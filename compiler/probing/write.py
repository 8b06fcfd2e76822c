"""A report's file: there whole, or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from mixplan.compiler.output import reporting_disk_errors
from mixplan.compiler.probing.record import ProbeReport
from mixplan.runtime.errors import OptionError, OutputError

__all__ = ["check_outputs", "write_report"]

_SUFFIXES = (".html", ".json")


def check_outputs(paths: Sequence[Path], force: bool) -> None:
    """Whether the files can be made, before minutes are spent: OptionError for a suffix that says nothing, else OutputError."""
    for path in paths:
        if path.suffix.lower() not in _SUFFIXES:
            raise OptionError(f"{path} ends in {path.suffix!r}, which says no format; allowed: .html and .json.")
        if path.is_dir():
            raise OutputError(f"{path} is a folder.", hint="Choose another output path.")
        if path.exists() and not force:
            raise OutputError(f"{path} exists.", hint="Use --force to replace it, or choose another output path.")
        if not path.parent.is_dir():
            raise OutputError(f"{path} cannot be written: {path.parent} is not a folder.", hint="Make the folder first.")
        if not os.access(path.parent, os.W_OK):
            raise OutputError(f"{path} cannot be written: no permission in {path.parent}.", hint="Choose another output path.")
    if len({path.absolute() for path in paths}) < len(paths):
        raise OptionError("An output is named twice.")


def write_report(report: ProbeReport, path: Path) -> None:
    """Write `path` as its suffix says, beside its name and then under it."""
    if path.suffix.lower() == ".json":
        text = json.dumps(report.to_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    else:
        from mixplan.compiler.probing.html import report_html

        text = report_html(report)
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    with reporting_disk_errors(path):
        try:
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(path)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
