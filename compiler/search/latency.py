"""The time of a decode step, measured on a plan: as `generate` runs it, one new token in each of some sequences."""

from __future__ import annotations

import statistics
from pathlib import Path
from time import perf_counter

import numpy as np

from mixplan.compiler.search.promise import Promise
from mixplan.runtime import load
from mixplan.runtime.errors import OptionError
from mixplan.runtime.logit_rows import finite_best
from mixplan.runtime.plan import Model

__all__ = ["check_work", "decode_seconds"]

_WARM, _LEAST, _MOST, _SECONDS = 5, 60, 2000, 1.5
_STRETCH = 16
"""Steps before the sequences are cut back to their context."""


def check_work(promise: Promise, model: Model) -> None:
    """OptionError for a context that the model has not."""
    if promise.context + _STRETCH > model.context_length:
        raise OptionError(
            f"context is {promise.context}; the model takes {model.context_length} tokens, and {_STRETCH} are measured after it.",
            hint=f"Give --context {max(model.context_length - _STRETCH, 1)} or less.",
        )


def decode_seconds(plan: Path, batch: int, context: int, *, threads: int | None = None) -> float:
    """Median seconds of a step of `batch` sequences, at `context` tokens each and a few more. The plan's own kernels are trusted."""
    with load(plan, trust=True, threads=threads, max_sequences=batch, kv_tokens=batch * (context + 2 * _STRETCH)) as model:
        generator = np.random.default_rng(0)
        vocabulary = model.plan.model.vocab_size
        sequences = list(range(batch))
        for sequence in sequences:
            model.prefill(generator.integers(0, vocabulary, context), sequence)
        tokens = [int(i) for i in generator.integers(0, vocabulary, batch)]
        times: list[float] = []
        began = perf_counter()
        while len(times) < _LEAST + _WARM or (perf_counter() - began < _SECONDS and len(times) < _MOST):
            for _ in range(_STRETCH):
                started = perf_counter()
                tokens = list(model.decode(tokens, sequences, finite_best))
                times.append(perf_counter() - started)
            for sequence in sequences:
                model.truncate(sequence, context)
        return statistics.median(times[_WARM:])
