"""A lock file, as flock(1) takes it, so that a benchmark and other work on one machine take turns."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

__all__ = ["Lease"]


class Lease:
    """Exclusive use of a lock file while `turn` is entered, and on until the next turn unless it has been held for `seconds`."""

    def __init__(self, path: Path, seconds: float = 80.0) -> None:
        self._path, self._seconds = path, seconds
        self._file: IO[str] | None = None
        self._since = 0.0

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Waits until no one else holds the lock."""
        if self._file is None:
            self._file = self._path.open("a")
            fcntl.flock(self._file, fcntl.LOCK_EX)
            self._since = time.monotonic()
        try:
            yield
        finally:
            if time.monotonic() - self._since > self._seconds:
                self.close()

    def close(self) -> None:
        """Give it up."""
        if self._file is not None:
            self._file.close()
            self._file = None
