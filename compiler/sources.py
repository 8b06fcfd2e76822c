"""SHA-256 of a checkpoint's files, worked out beside other work: hashing releases the interpreter."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event
from time import perf_counter
from types import TracebackType
from typing import Self

from mixplan.runtime.errors import CheckpointError

__all__ = ["SourceHashes"]

_CHUNK = 8 << 20
_THREADS = 4


class SourceHashes:
    """Hashes in the background from the moment it is made; leaving its `with` block early stops it within a chunk."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self.seconds = 0.0
        self._stop = Event()
        self._started = perf_counter()
        self._pool = ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1))
        self._digests: dict[str, Future[str]] = {name: self._pool.submit(self._hash, path) for name, path in sorted(files.items())}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._pool.shutdown(cancel_futures=True)

    def result(self) -> dict[str, str]:
        """Hex digests by the files' names, in order of name. CheckpointError for a file that cannot be read."""
        return {name: digest.result() for name, digest in self._digests.items()}

    def _hash(self, path: Path) -> str:
        digest, buffer = hashlib.sha256(), bytearray(_CHUNK)
        view = memoryview(buffer)
        try:
            with path.open("rb", buffering=0) as file:
                while not self._stop.is_set() and (count := file.readinto(buffer)):
                    digest.update(view[:count])
        except OSError as error:
            raise CheckpointError(
                f"{path} cannot be read: {error.strerror}.", hint="The checkpoint must stay as it is during a compile."
            ) from error
        # Files end in any order; the last one's time counts.
        self.seconds = max(self.seconds, perf_counter() - self._started)
        return digest.hexdigest()
