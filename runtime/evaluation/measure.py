"""Perplexity of a plan on windows of tokens, and its divergence from a reference, as the runtime runs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mixplan.runtime.errors import RequestError
from mixplan.runtime.evaluation.distributions import divergence, token_losses
from mixplan.runtime.evaluation.windows import Windows
from mixplan.runtime.model import Model
from mixplan.runtime.progress import Progress

__all__ = ["Measured", "Perplexity", "Reference", "measure", "measure_perplexity", "window_logits"]

Floats: TypeAlias = NDArray[np.float32]
Wide: TypeAlias = NDArray[np.float64]

# The number of the sequence that windows are run as; it is freed after each.
_SEQUENCE = 0


class Reference(Protocol):
    """Whom a plan is compared with, on given windows."""

    vocab_size: int

    def window(self, index: int) -> Floats:
        """Logits or log-probabilities of window `index`, f32 [L, V]. Read only, and valid until the next call."""


@dataclass(frozen=True)
class Perplexity:
    """Perplexity over the predicted tokens of all windows: L - 1 of each.

    perplexity_error: its standard error, from how the windows differ; NaN for one window. position_loss: mean negative log-probability by
    position, nats, [L - 1].
    """

    windows: int
    context: int
    perplexity: float
    perplexity_error: float
    position_loss: tuple[float, ...]


@dataclass(frozen=True)
class Measured:
    """A plan against its reference. kld: Kullback-Leibler divergence of the plan's next-token distribution from the reference's, nats,
    over every position of every window; same_top: the share of positions where both think the same token most probable.

    positions: mean divergence by position, [L]. loss: perplexity relative to the reference's, less 1. Errors are standard errors, from how
    the windows differ; NaN for one window. A plan whose logits are not finite has an infinite perplexity and divergence.
    """

    windows: int
    context: int
    perplexity: float
    reference_perplexity: float
    loss: float
    loss_error: float
    kld_mean: float
    kld_error: float
    kld_median: float
    kld_p99: float
    same_top: float
    positions: tuple[float, ...]


def window_logits(model: Model, token_ids: NDArray[np.int64]) -> Floats:
    """The plan's logits of one window of L tokens, f32 [L, V], in as few steps as max_step_tokens allows."""
    parts = []
    try:
        for start in range(0, len(token_ids), model.max_step_tokens):
            chunk = token_ids[start : start + model.max_step_tokens]
            parts.append(model.step(chunk, np.arange(start, start + len(chunk)), np.full(len(chunk), _SEQUENCE), "all"))
    finally:
        model.free(_SEQUENCE)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def measure_perplexity(model: Model, windows: Windows, *, progress: Progress | None = None) -> Perplexity:
    """The plan's perplexity on windows of token ids, i64 [W, L]. RequestError for windows that are none, or do not fit the model."""
    _check(model, windows)
    losses = np.empty((len(windows), windows.shape[1] - 1))
    for index, ids in enumerate(windows):
        losses[index] = token_losses(window_logits(model, ids)[:-1], ids[1:])
        _tell(progress, index, windows)
    means = losses.mean(-1)
    perplexity = _exp(float(means.mean()))
    count, context = windows.shape
    return Perplexity(count, context, perplexity, perplexity * _error(means), tuple(losses.mean(0).tolist()))


def measure(model: Model, windows: Windows, reference: Reference, *, progress: Progress | None = None) -> Measured:
    """The plan against a reference on windows of token ids, i64 [W, L]; the reference's `window(i)` is that of windows[i].

    Holds the logits of one window. RequestError for windows that are none, or do not fit the model, and for another vocabulary.
    """
    _check(model, windows)
    vocab_size = model.plan.model.vocab_size
    if reference.vocab_size != vocab_size:
        raise RequestError(
            f"The plan has a vocabulary of {vocab_size}, the reference one of {reference.vocab_size}.",
            hint=f"Give the checkpoint that the plan was compiled from: {model.plan.provenance.source_name}.",
        )
    count, context = windows.shape
    kld, same = np.empty((count, context)), np.empty((count, context), np.bool_)
    losses, reference_losses = np.empty((count, context - 1)), np.empty((count, context - 1))
    for index, ids in enumerate(windows):
        found = divergence(window_logits(model, ids), reference.window(index), ids)
        kld[index], same[index] = found.kld, found.same_top
        losses[index], reference_losses[index] = found.loss, found.reference_loss
        _tell(progress, index, windows)
    with np.errstate(invalid="ignore"):
        excess = losses.mean(-1) - reference_losses.mean(-1)
        ratio = _exp(float(excess.mean()))
        return Measured(
            windows=count,
            context=context,
            perplexity=_exp(float(losses.mean())),
            reference_perplexity=_exp(float(reference_losses.mean())),
            loss=ratio - 1,
            loss_error=ratio * _error(excess),
            kld_mean=float(kld.mean()),
            kld_error=_error(kld.mean(-1)),
            kld_median=float(np.median(kld)),
            kld_p99=float(np.quantile(kld, 0.99, method="higher")),
            same_top=float(same.mean()),
            positions=tuple(kld.mean(0).tolist()),
        )


def _check(model: Model, windows: Windows) -> None:
    if windows.ndim != 2 or windows.shape[0] < 1 or windows.shape[1] < 2 or windows.dtype.kind not in "iu":
        raise RequestError(f"Windows are {windows.dtype} {list(windows.shape)}; they must be integers [W, L] with L at least 2.")
    limit = model.plan.model.context_length
    if windows.shape[1] > limit:
        raise RequestError(
            f"Windows have {windows.shape[1]} tokens; the model's context_length is {limit}.", hint="Give a shorter context."
        )


def _tell(progress: Progress | None, index: int, windows: Windows) -> None:
    if progress is not None:
        progress("windows", (index + 1) / len(windows))


def _exp(value: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.exp(value))


def _error(means: Wide) -> float:
    """The standard error of the mean."""
    return float(means.std(ddof=1) / np.sqrt(len(means))) if len(means) > 1 and np.isfinite(means).all() else float("nan")
