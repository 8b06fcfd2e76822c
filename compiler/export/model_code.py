"""Which source files are the model's own, and where a traced computation stands in them."""

from __future__ import annotations

import sys
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import FrameType

import torch
from torch import fx

__all__ = ["frame_line", "is_model_code", "model_line", "source_line"]

_PACKAGE = Path(__file__).parents[2]
# The package's parts by name: in a checkout, the root also holds tests and examples, whose modules are models like any other.
_PARTS = ("compiler", "passes", "runtime", "targets", "cli.py")


def _roots(*folders: str | Path) -> tuple[str, ...]:
    """The folders as frames may spell them: as imported, and with links resolved."""
    return tuple(sorted({str(form).replace("\\", "/") for folder in folders for form in (Path(folder), Path(folder).resolve())}))


_OURS = _roots(*(_PACKAGE / part for part in _PARTS), Path(torch.__file__).parent)
_STANDARD = _roots(sysconfig.get_paths()["stdlib"])


def is_model_code(path: str) -> bool:
    """Whether a source file is the model's: not torch's, mixplan's, Python's own, or generated."""
    path = path.replace("\\", "/")
    if path.startswith("<") or _within(path, _OURS):
        return False
    return "/site-packages/" in path or not _within(path, _STANDARD)


def source_line(node: fx.Node) -> str:
    """file:line: text of the deepest line of the model's code that made the node; "" where it is not known."""
    frames = [line.strip() for line in str(node.meta.get("stack_trace") or "").splitlines()]
    places = [(frame, frames[i + 1] if i + 1 < len(frames) else "") for i, frame in enumerate(frames) if frame.startswith("File ")]
    for frame, text in reversed(places):
        path, line = frame.split('"')[1], frame.split("line ")[1].split(",")[0]
        if is_model_code(path):
            return _place(path, line, text)
    return ""


def model_line(error: BaseException) -> str:
    """file:line: text of the deepest frame of the model's code that the error passed through; "" where there is none."""
    return _deepest(reversed(traceback.extract_tb(error.__traceback__)))


def frame_line(frame: FrameType | None = None) -> str:
    """The same for the code that is running now, or that `frame` runs."""
    return _deepest(reversed(traceback.extract_stack(frame or sys._getframe(1))))


def _deepest(frames: Iterable[traceback.FrameSummary]) -> str:
    """Helpers of installed packages (activations, masks) are passed over for the model that calls them."""
    for frame in frames:
        path = frame.filename.replace("\\", "/")
        if is_model_code(path) and ("/models/" in path or "/site-packages/" not in path):
            return _place(path, str(frame.lineno), (frame.line or "").strip())
    return ""


def _place(path: str, line: str, text: str) -> str:
    return f"{'/'.join(path.replace(chr(92), '/').split('/')[-2:])}:{line}: {text}"


def _within(path: str, roots: tuple[str, ...]) -> bool:
    return any(path == root or path.startswith(f"{root}/") for root in roots)
