"""Errors that mean that memory ran out, whatever other error they were made into on the way."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mixplan.runtime.errors import CapacityError

__all__ = ["reporting_short_memory", "short_memory"]

# How torch's allocator, C++, the dynamic loader and Python's threads tell it: none of them has an exception of its own for it.
_WORDS = ("allocate memory", "not enough memory", "bad_alloc", "failed to map segment", "can't start new thread")
_KINDS = (RuntimeError, ImportError)
_ASKED = re.compile(r"tried to allocate (\d+) bytes")
_ADDRESSES = 1 << 47
"""Bytes that a process can address at all. To want more is a wrong size somewhere, not a lack of memory."""


def short_memory(error: BaseException) -> BaseException | None:
    """The error that tells that memory ran out: this one, or one that it was raised from, since handlers take it for something else.

    None where there is none. What was merely handled at the time (`__context__`) does not count: a caller may try again with less.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError) or (isinstance(cause, OSError) and cause.errno == errno.ENOMEM):
            return cause
        if isinstance(cause, _KINDS) and any(words in str(cause).lower() for words in _WORDS):
            asked = _ASKED.search(str(cause))
            return cause if asked is None or int(asked[1]) < _ADDRESSES else None
        cause = cause.__cause__
    return None


@contextmanager
def reporting_short_memory(work: Callable[[], str], *, or_else: str = "") -> Iterator[None]:
    """Turn every error that means that memory ran out into a CapacityError: "there is no memory for" what `work` then says.

    or_else: ends the hint, where it may be something else after all.
    """
    try:
        yield
    except CapacityError:
        raise
    except Exception as error:  # any error may have been raised from one of memory
        found = short_memory(error)
        if found is None:
            raise
        words = str(found).partition("\n")[0].strip()[:300]
        raise CapacityError(
            f"there is no memory for {work()}{f': {words}' if words else ''}.",
            hint=f"Free memory, raise the limit that this process has (ulimit -v), or use a machine with more of it{or_else}.",
        ) from error
