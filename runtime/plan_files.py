"""Safe access to the files of a plan: paths that cannot leave it, no symlinks, digests."""

from __future__ import annotations

import hashlib
import mmap
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from mixplan.runtime.errors import PlanError
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
    with path.open("rb", buffering=0) as file:
        return FileEntry(sha256=hashlib.file_digest(file, "sha256").hexdigest(), size=os.fstat(file.fileno()).st_size)


@dataclass
class PlanFile:
    """One open file of a plan. What is hashed and what is mapped is the same open file, whatever happens to its name meanwhile."""

    path: str
    size: int
    fd: int
    _map: mmap.mmap | None = None

    def sha256(self) -> str:
        """Digest of the whole file (lowercase hex), read in pieces, so that its pages do not count as this process's memory."""
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
        """The content as read-only shared memory. The file must not be empty."""
        if self._map is None:
            self._map = mmap.mmap(self.fd, self.size, access=mmap.ACCESS_READ)
        return self._map

    def close(self) -> None:
        """Close the descriptor. Maps that arrays still refer to stay valid until those go."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        self._map = None

    def __del__(self) -> None:
        """A plan that nobody closed gives its descriptors back with its last reference."""
        self.close()


class PlanDirectory:
    """An open plan directory, below which files are opened without following symlinks."""

    def __init__(self, root: Path) -> None:
        self.root = root
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
