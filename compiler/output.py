"""A plan's directory appears whole or not at all: written beside its final name, flushed to disk, renamed."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from mixplan.runtime.errors import OutputError

__all__ = ["new_directory", "reporting_disk_errors", "size_text"]

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


@contextmanager
def new_directory(output: Path, *, force: bool, kind: str = "a plan", marker: str = "plan.json") -> Iterator[Path]:
    """Give a temporary sibling of `output` to fill; at the end rename it to `output`, on any failure remove it.

    Raises OutputError where `output` exists (unless `force`, and it is of the `kind` that the file `marker` tells), or cannot be written.
    Leftovers of compiles that were killed are removed first.
    """
    output = Path(os.path.abspath(output))  # noqa: PTH100 - resolve() would follow a symlink that is to be replaced
    _check_target(output, force, kind, marker)
    temporary = output.parent / f".{output.name}.tmp-{os.getpid()}"
    with ExitStack() as undo:
        with reporting_disk_errors(output):
            _make_parents(output.parent, undo)
            _remove_leftovers(output)
            try:
                temporary.mkdir()
            except FileExistsError:
                raise OutputError(f"{output} is being written by another compile of this process.") from None
        # After an exchange, this is the plan that was replaced.
        undo.callback(shutil.rmtree, temporary, ignore_errors=True)
        yield temporary
        with reporting_disk_errors(output):
            _flush(temporary)
            _check_target(output, force, kind, marker)
            _move(temporary, output)
            _flush_entry(output.parent)


@contextmanager
def reporting_disk_errors(output: Path, needed: int | None = None) -> Iterator[None]:
    """Turn the system's refusals to write into OutputError, with the bytes that the plan needs where that is known."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = _free(output)
            need = "" if needed is None else f" The weights need {size_text(needed)};"
            raise OutputError(
                f"There is no room for {_final(output)}: {error.strerror}.{need} {size_text(free)} are free there.",
                hint="Free some space, write elsewhere, or choose a scheme of fewer bits.",
            ) from error
        raise OutputError(f"{_final(output)} cannot be written: {error.strerror or error}.", hint="Choose another output path.") from error


def size_text(nbytes: int) -> str:
    """A number of bytes as people say it."""
    return f"{nbytes / 1e9:.2f} GB" if nbytes >= 1e8 else f"{nbytes / 1e6:.2f} MB"


def _final(path: Path) -> Path:
    """The output's own name for its temporary one, which no caller has heard of."""
    match = re.fullmatch(r"\.(.+)\.tmp-\d+", path.name)
    return path.with_name(match[1]) if match else path


def _make_parents(folder: Path, undo: ExitStack) -> None:
    """Make the folders that are missing. `undo` removes them again, where they are still empty at the end."""
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    for parent in reversed(missing):
        parent.mkdir(exist_ok=True)
        undo.callback(_remove_empty, parent)
    if not folder.is_dir():
        raise OutputError(f"The plan cannot be written: {folder} is not a folder.", hint="Choose another output path.")


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


def _free(output: Path) -> int:
    place = output
    while not place.exists() and place != place.parent:
        place = place.parent
    return shutil.disk_usage(place).free


def _check_target(output: Path, force: bool, kind: str, marker: str) -> None:
    if not os.path.lexists(output):
        return
    if not force:
        raise OutputError(f"{output} exists.", hint="Use --force to replace it, or choose another output path.")
    if output.is_symlink() or not (output / marker).is_file():
        raise OutputError(f"{output} exists and is not {kind}, so it is not replaced.", hint="Choose another output path.")


def _remove_leftovers(output: Path) -> None:
    """Remove temporary siblings whose compile is dead."""
    pattern = re.compile(re.escape(f".{output.name}.tmp-") + r"(\d+)")
    for path in output.parent.iterdir():
        match = pattern.fullmatch(path.name)
        if match and int(match[1]) != os.getpid() and not _alive(int(match[1])):
            shutil.rmtree(path, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _flush(root: Path) -> None:
    for folder, _, files in os.walk(root):
        for name in files:
            _flush_entry(Path(folder) / name)
        _flush_entry(Path(folder))


def _flush_entry(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _move(temporary: Path, output: Path) -> None:
    """Rename, exchanging with a plan that is there, so that no moment is without one."""
    if not output.exists():
        temporary.rename(output)
        return
    libc = ctypes.CDLL(None, use_errno=True)
    exchange = getattr(libc, "renameat2", None)
    if exchange is None or exchange(_AT_FDCWD, os.fsencode(temporary), _AT_FDCWD, os.fsencode(output), _RENAME_EXCHANGE) != 0:
        # A file system without exchange: a short moment without a plan.
        shutil.rmtree(output)
        temporary.rename(output)
