"""The `tokenizers` library's own tokenizer of a plan, which can be made beside other work.

The library lets go of the interpreter while it parses, which takes as long as hashing the weights. Imports little, to begin early.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mixplan.runtime.errors import MixplanError, PlanError, UnsupportedError
from mixplan.runtime.plan_files import PlanFile

__all__ = ["ParsedAhead", "parse", "sound"]


@contextmanager
def sound() -> Iterator[None]:
    """PlanError where the library fails: a panic inside it is no Exception, and would pass every handler."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise PlanError(f"tokenizer.json is malformed: {error}.", hint="Compile the plan again.") from error


def parse(data: bytes) -> Any:
    """The library's tokenizer for the content of a tokenizer.json."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise UnsupportedError("Text needs the package tokenizers, which is not installed.", hint="Run: pip install tokenizers") from error
    with sound():
        backend = Tokenizer.from_str(data.decode("utf-8"))
    # A checkpoint's settings for training batches have no place in inference.
    backend.no_truncation()
    backend.no_padding()
    return backend


class ParsedAhead:
    """A tokenizer that is being made in another thread, of a file whose digest is not known to be right yet."""

    def __init__(self, file: PlanFile) -> None:
        """`file` is closed when it was read."""
        self._file = file
        self._digest = ""
        self._backend: Any = None
        # Not a daemon: one that wakes inside the library while the interpreter ends would bring the process down.
        self._thread = threading.Thread(target=self._run, name="mixplan-tokenizer")
        self._thread.start()

    def take(self, digest: str) -> Any:
        """The tokenizer, where the file's SHA-256 is `digest`; None where it is not, or no tokenizer could be made of it."""
        self._thread.join()
        backend, self._backend = self._backend, None
        return backend if self._digest == digest else None

    def _run(self) -> None:
        try:
            data = self._file.read()
            self._backend = parse(data)
            self._digest = hashlib.sha256(data).hexdigest()
        except (MixplanError, OSError):
            # Whoever asks for the tokenizer reads the file again, and is told.
            pass
        finally:
            self._file.close()
