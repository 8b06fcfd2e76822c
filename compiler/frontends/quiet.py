"""Keeps transformers from talking while it reads a config or builds a model: mixplan's own errors and notes say what matters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["quiet_transformers"]


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Only transformers' errors are logged inside; the caller's own setting is back afterwards."""
    try:
        from transformers.utils import logging
    except ImportError:  # whoever needs transformers says so
        yield
        return
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)
