"""Process-wide settings that make a compile faster, set for as long as it needs them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["collector_paused", "one_torch_thread"]


@contextmanager
def collector_paused() -> Iterator[None]:
    """No garbage collection: tracing makes millions of objects that live on; looking through them again and again costs a fifth of it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """For work that is spread over cores by its caller: threads of torch's own would only contend with it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
