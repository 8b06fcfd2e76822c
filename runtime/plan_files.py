"""Safe access to the files of a plan: paths that cannot leave it, no symlinks, digests."""

from __future__ import annotations

import hashlib
import mmap
import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from mixplan.runtime.errors import CapacityError, PlanError
from mixplan.runtime.reading import Reading

if TYPE_CHECKING:
    from mixplan.runtime.plan import FileEntry

__all__ = [
    "MANIFEST",
    "MANIFEST_DIGEST",
    "RESERVED",
    "SIGNATURE",
    "PlanDirectory",
    "PlanFile",
    "check_path",
    "hash_file",
]

MANIFEST = "plan.json"
MANIFEST_DIGEST = "plan.sha256"
SIGNATURE = "plan.sig"
RESERVED = frozenset({MANIFEST, MANIFEST_DIGEST, SIGNATURE})
"""The files that the manifest cannot list, since it is what they vouch for."""

_PART = re.compile(r"[A-Za-z0-9_+][A-Za-z0-9_.+-]*")
_MAX_PATH = 200
_CHUNK = 1 << 20


def check_path(path: str, *, named_by: str) -> None:
    """Raise PlanError unless `path` is a plain relative path that cannot leave the plan; `named_by` is who mentions it."""
    parts = path.split("/")
    if len(path) > _MAX_PATH or not all(_PART.fullmatch(part) for part in parts):
        raise PlanError(
            f"{named_by} names the file {path[:_MAX_PATH]!r}, which is not a plain path inside the plan.",
            hint="Allowed: names of letters, digits, '_', '+', '-' and '.', not starting with '.' or '-', joined by '/'.",
        )


def hash_file(path: Path) -> FileEntry:
    """Size and SHA-256 of a file, read in pieces."""
    from mixplan.runtime.plan import FileEntry

    with path.open("rb", buffering=0) as file:
        return FileEntry(sha256=hashlib.file_digest(file, "sha256").hexdigest(), size=os.fstat(file.fileno()).st_size)


class PlanFile:
    """One open file of a plan. What is hashed and what is mapped is the same open file, whatever happens to its name meanwhile."""

    def __init__(self, path: str, size: int, fd: int) -> None:
        self.path = path
        self.size = size
        self.fd = fd
        self._map: mmap.mmap | None = None
        self._reading: Reading | None = None

    def begin(self, *, copy: bool, digest: bool) -> None:
        """Read it in another thread, for `finish` to wait for. copy: `map` then gives memory of this process, filled by that thread.

        digest: compute the SHA-256 of what is read: with `copy`, of the very bytes that will be used. CapacityError where memory lacks.
        """
        if not self.size:
            return
        try:
            self._reading = Reading(self.fd, self.size, copy=copy, digest=digest)
        except (OSError, OverflowError, ValueError) as error:
            raise CapacityError(
                f"{self.size} bytes for the weights in {self.path} cannot be had: {error}.", hint='Load with weights="mapped".'
            ) from error

    def finish(self) -> str:
        """Wait for the thread that `begin` started; the SHA-256 if it was asked for, else ""."""
        if self._reading is None:
            return ""
        try:
            return self._reading.digest()
        except (OSError, EOFError) as error:
            raise PlanError(f"{self.path} cannot be read: {error}.", hint="Copy the plan again.") from error

    def sha256(self) -> str:
        """Digest of the whole file (lowercase hex), read in pieces, so that its pages do not count as this process's memory."""
        known = self.finish()
        if known:
            return known
        digest = hashlib.sha256()
        buffer = memoryview(bytearray(min(_CHUNK, max(self.size, 1))))
        offset = 0
        while count := os.preadv(self.fd, [buffer], offset):
            digest.update(buffer[:count])
            offset += count
        return digest.hexdigest()

    def read(self) -> bytes:
        """The whole content."""
        parts = []
        offset = 0
        while part := os.pread(self.fd, 1 << 24, offset):
            parts.append(part)
            offset += len(part)
        return b"".join(parts)

    def map(self) -> mmap.mmap:
        """The content: the file's own pages, read-only, or where `begin` made a copy, that, which is complete after `finish`.

        The file must not be empty.
        """
        if self._reading is not None and self._reading.memory is not None:
            return self._reading.memory
        if self._map is None:
            self._map = mmap.mmap(self.fd, self.size, access=mmap.ACCESS_READ)
        return self._map

    def close(self) -> None:
        """Close the descriptor. Maps that arrays still refer to stay valid until those go."""
        if self.fd >= 0:
            if self._reading is not None:
                self._reading.stop()
            os.close(self.fd)
            self.fd = -1
        self._map = self._reading = None

    def __del__(self) -> None:
        """A plan that nobody closed gives its descriptors back with its last reference."""
        self.close()


class PlanDirectory:
    """An open plan directory, below which files are opened without following symlinks."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        try:
            self._fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise PlanError(f"There is no plan at {root}.", hint="A plan is made by: mixplan compile MODEL -o OUT.plan") from None
        except OSError as error:
            raise PlanError(f"{root} is not a plan directory: {error.strerror}.") from None
        except ValueError as error:  # a null byte
            raise PlanError(f"{str(root)!r} is not a path: {error}.") from None

    def close(self) -> None:
        """Close the directory; open files stay open."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def names(self, ending: str) -> list[str]:
        """Names of what lies in the directory itself and ends so; PlanError where that cannot be told."""
        try:
            # The open directory's own entries, whatever happens to its name.
            return sorted(name for name in os.listdir(self._fd) if name.endswith(ending))  # noqa: PTH208
        except OSError as error:
            raise PlanError(f"{self.root} cannot be listed: {error.strerror}.") from None

    def open(self, path: str, *, named_by: str) -> PlanFile:
        """Open the regular file `path`, or raise PlanError: missing, a symlink anywhere on the way, not a file, unreadable."""
        check_path(path, named_by=named_by)
        *folders, name = path.split("/")
        directory = self._fd
        try:
            for folder in folders:
                inner = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
                if directory != self._fd:
                    os.close(directory)
                directory = inner
            # O_NONBLOCK: opening a named pipe must not wait for a writer.
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
        except FileNotFoundError:
            raise PlanError(f"{self.root} lacks the file {path}, which {named_by} names.", hint="Copy the whole directory again.") from None
        except OSError as error:
            raise PlanError(
                f"{self.root}/{path} cannot be opened: {error.strerror} (a plan may hold no symlinks and only regular files)."
            ) from None
        finally:
            if directory != self._fd:
                os.close(directory)
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(fd)
            raise PlanError(f"{self.root}/{path} is not a regular file.")
        return PlanFile(path=path, size=status.st_size, fd=fd)
