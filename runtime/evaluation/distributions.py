"""What rows of logits say as distributions: the loss of the tokens that follow, the divergence from other rows.

Rows are wide (a vocabulary), so they are worked on a few at a time, in float64 and in caches, on as many threads as there are cores.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["Divergence", "divergence", "token_losses"]

Floats: TypeAlias = NDArray[np.float32]
Wide: TypeAlias = NDArray[np.float64]
Made = TypeVar("Made")

_ROWS = 4


@dataclass(frozen=True)
class Divergence:
    """Row by row. kld: Kullback-Leibler divergence D(reference || other), nats, f64 [R]; infinite where the other row is not finite and
    where it excludes what the reference does not. same_top: whether the most probable token is the same, bool [R]. loss, reference_loss:
    negative log-probability of the token that follows, f64, one fewer than R."""

    kld: Wide
    same_top: NDArray[np.bool_]
    loss: Wide
    reference_loss: Wide


def token_losses(logits: Floats, targets: NDArray[np.int64]) -> Wide:
    """Negative log-probability of each row's target, nats, f64 [R], of logits f32 [R, V]; infinite where the logits are not finite."""

    def block(start: int, stop: int) -> Wide:
        shifted, total = _shifted(logits[start:stop])
        return _losses(shifted, np.log(total), targets[start:stop])

    return np.concatenate([np.zeros(0), *_by_blocks(len(logits), block)])


def divergence(logits: Floats, reference: Floats, token_ids: NDArray[np.int64]) -> Divergence:
    """Of logits f32 [L, V] from a reference's logits or log-probabilities f32 [L, V], on L tokens."""

    def block(start: int, stop: int) -> Divergence:
        a, a_total = _shifted(reference[start:stop])
        b, b_total = _shifted(logits[start:stop])
        a_log, b_log = np.log(a_total), np.log(b_total)
        weights = np.exp(a)
        following = token_ids[start + 1 : stop + 1]
        same = reference[start:stop].argmax(-1) == logits[start:stop].argmax(-1)
        losses = _losses(b, b_log, following), _losses(a, a_log, following)
        with np.errstate(invalid="ignore"):
            np.subtract(a, b, out=b)
            if not np.isfinite(b).all():
                b[weights == 0] = 0  # what cannot happen costs nothing
            np.multiply(b, weights, out=b)
            kld = b.sum(-1) / a_total - a_log + b_log
        kld = np.where(np.isnan(kld), np.inf, np.maximum(kld, 0.0))
        return Divergence(kld, same & np.isfinite(b_log), *losses)

    blocks = _by_blocks(len(logits), block)
    return Divergence(
        *(np.concatenate([getattr(block, name) for block in blocks]) for name in ("kld", "same_top", "loss", "reference_loss"))
    )


def _shifted(rows: Floats) -> tuple[Wide, Wide]:
    """Rows less their largest element, and the sums of their exponentials; NaN where a row's largest is not finite."""
    wide = rows.astype(np.float64)
    with np.errstate(invalid="ignore"):
        wide -= wide.max(-1, keepdims=True)
        return wide, np.exp(wide).sum(-1)


def _losses(shifted: Wide, log_total: Wide, following: NDArray[np.int64]) -> Wide:
    count = len(following)
    losses: Wide = log_total[:count] - shifted[np.arange(count), following]
    return np.where(np.isnan(losses), np.inf, losses)


def _by_blocks(rows: int, block: Callable[[int, int], Made]) -> list[Made]:
    starts = range(0, rows, _ROWS)
    # numpy frees the interpreter lock inside its loops.
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return list(pool.map(lambda start: block(start, min(start + _ROWS, rows)), starts))
