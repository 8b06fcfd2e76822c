"""Compiled kernels by what they were made from, in $XDG_CACHE_HOME/mixplan (default ~/.cache/mixplan).

A library is native code, so the cache must belong to the user: one that others may write to is not used.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from mixplan.runtime.errors import OutputError

__all__ = ["cache_root", "cached_kernel", "find_cached", "kernel_key"]

# Libraries to keep, of some 100 kB each.
_KEPT = 1000
_HINT = "Set XDG_CACHE_HOME to a folder of yours."


def cache_root() -> Path:
    """The directory of all caches of mixplan."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(given) if given.startswith("/") else Path.home() / ".cache") / "mixplan"


def kernel_key(source: str, flags: Sequence[str], compiler: str) -> str:
    """SHA-256 over everything that the library's bytes depend on."""
    digest = hashlib.sha256()
    for part in (compiler, *flags, source):
        data = part.encode("utf-8")
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def _folder() -> Path:
    folder = cache_root() / "kernels"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = folder.stat()
    except OSError as error:
        raise OutputError(f"The kernel cache {folder} cannot be made: {error.strerror}.", hint=_HINT) from error
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise OutputError(
            f"The kernel cache {folder} belongs to another user or can be written by others, so its libraries cannot be trusted.",
            hint=f"{_HINT[:-1]}, or correct the owner and mode.",
        )
    return folder


def find_cached(key: str, suffix: str = ".so") -> Path | None:
    """The path of library `key` where it is there, and marks it as used."""
    path = _folder() / f"{key}{suffix}"
    if not path.exists():
        return None
    os.utime(path)
    return path


def cached_kernel(key: str, make: Callable[[], bytes], suffix: str = ".so") -> Path:
    """The path of library `key`, made and stored first where it is not there. A reader never sees half a file."""
    found = find_cached(key, suffix)
    if found is not None:
        return found
    path = _folder() / f"{key}{suffix}"
    data = make()
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{key[:16]}-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise OutputError(f"The kernel cache {path.parent} cannot be written: {error.strerror}.") from error
    _prune(path.parent, suffix)
    return path


def _prune(folder: Path, suffix: str) -> None:
    """Remove the libraries that were not asked for longest, where there are too many."""
    dated: list[tuple[float, Path]] = []
    for path in folder.glob(f"*{suffix}"):
        with contextlib.suppress(OSError):  # another process may remove it first
            dated.append((path.stat().st_mtime, path))
    for _, path in sorted(dated)[:-_KEPT]:
        path.unlink(missing_ok=True)
