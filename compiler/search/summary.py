"""The promise in the compile's report: what was asked, what was achieved, how it was found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mixplan.compiler.search.failure import figure_text
from mixplan.compiler.search.promise import MEASURES
from mixplan.compiler.search.request import Request
from mixplan.compiler.search.run import Found

__all__ = ["PromiseSummary", "summarize_promise"]


@dataclass(frozen=True)
class PromiseSummary:
    """asked, achieved: by name, in bits, bytes, fractions, nats, seconds; achieved ones of quality with their standard error added.

    measured: on the held-out text. predicted_loss: nats. attempts: plans that were built.
    """

    asked: dict[str, float]
    achieved: dict[str, float]
    measured: dict[str, float]
    predicted_loss: float
    status: str
    gap: float
    attempts: int

    def render(self, table: Callable[..., Any]) -> list[Any]:
        """As a table."""
        promises = table("\nPromise", "figure", "at most:r", "achieved:r", "of the promise:r")
        for name in MEASURES:
            if name in self.asked:
                asked, got = self.asked[name], self.achieved[name]
                promises.add_row(name, figure_text(name, asked), figure_text(name, got), f"{got / asked:.1%}")
        quality = table("\nQuality on held-out text", "figure", "value:r")
        quality.add_row("perplexity", f"{self.measured['perplexity']:.3f} (original {self.measured['reference_perplexity']:.3f})")
        quality.add_row("KL divergence, mean", f"{self.measured['kld_mean']:.5f} (predicted {self.predicted_loss:.5f})")
        quality.add_row("KL divergence, 99th percentile", f"{self.measured['kld_p99']:.5f}")
        quality.add_row("same top token", f"{self.measured['same_top']:.2%}")
        quality.add_row("plans built", f"{self.attempts} (solver: {self.status}, gap {self.gap:.1e})")
        return [promises, quality]


def summarize_promise(found: Found, request: Request) -> PromiseSummary:
    """Of the plan that was found."""
    promise, solution = request.promise, found.attempt.solution
    return PromiseSummary(
        asked={name: promise.limits[name] for name in promise.limits},
        achieved={name: float(found.attempt.upper[name]) for name in promise.limits},
        measured=dict(found.receipt.measured),
        predicted_loss=solution.loss,
        status=solution.status,
        gap=solution.gap,
        attempts=found.attempts,
    )
