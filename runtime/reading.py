"""Reads a file to its end beside other work: hashes it, and brings it into memory of its own where wanted.

Imports little, so that the weights of a plan are on their way while numpy and the rest of the runtime are still being imported.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import threading
from pathlib import Path

from mixplan.runtime.cgroup import cgroup_limits

__all__ = ["Reading", "available_memory"]

_HUGE_PAGE = 2 << 20
# Bytes between two looks at the interpreter's lock, which another thread that imports or parses gives up every 5 ms only.
_PIECE = 256 << 20
# Without a copy a small buffer serves, so that the file's pages do not count as this process's memory.
_BUFFER = 4 << 20


class Reading:
    """A thread that reads `size` bytes of the open file `fd`. The file must stay open until `stop` or `digest` returns."""

    def __init__(self, fd: int, size: int, *, copy: bool, digest: bool) -> None:
        """copy: keep the content in `memory`; OSError where there is no room for it. digest: compute its SHA-256."""
        self.memory: mmap.mmap | None = _memory(size) if copy else None
        """The content, complete once `digest` has returned; None without a copy."""
        self._fd, self._size = fd, size
        self._sha256 = hashlib.sha256() if digest else None
        self._stopped = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="mixplan-reading", daemon=True)
        self._thread.start()

    def digest(self) -> str:
        """Wait for the end of the file; its SHA-256 (lowercase hex), "" where none was asked for."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return "" if self._sha256 is None else self._sha256.hexdigest()

    def stop(self) -> None:
        """Give up, as soon as the piece at hand is done."""
        self._stopped = True
        self._thread.join()

    def _run(self) -> None:
        try:
            piece = _PIECE if self.memory is not None else _BUFFER
            target = memoryview(self.memory if self.memory is not None else bytearray(min(piece, self._size)))
            offset = 0
            while offset < self._size and not self._stopped:
                at = offset if self.memory is not None else 0
                wanted = min(piece, self._size - offset)
                count = os.preadv(self._fd, [target[at : at + wanted]], offset)
                if not count:
                    raise EOFError(f"the file ends at {offset} bytes; it had {self._size}")
                if self._sha256 is not None:
                    self._sha256.update(target[at : at + count])
                offset += count
        except BaseException as error:
            self._error = error


def _memory(size: int) -> mmap.mmap:
    """Private memory in huge pages, where the system has them: a step that walks all weights then misses the TLB 500 times less."""
    memory = mmap.mmap(-1, -(-size // _HUGE_PAGE) * _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # Only a matter of speed.
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def available_memory() -> int:
    """Bytes that can be had without swapping, as the system and this process's cgroups see it; 0 where they do not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        available = int(fields["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError, ValueError):
        return 0
    free = cgroup_limits().memory_free
    return available if free is None else min(available, free)
