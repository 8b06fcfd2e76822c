"""What is said where a promise cannot be kept: by how much it is missed, and what would be needed."""

from __future__ import annotations

from collections.abc import Mapping

from mixplan.compiler.search.loop import AXES, Built, Outcome
from mixplan.compiler.search.promise import Measure, Promise
from mixplan.compiler.search.solver import Problem, least, solve
from mixplan.runtime.errors import PromiseError

__all__ = ["figure_text", "impossible", "missed"]

_NAMES: Mapping[Measure, str] = {
    "bits": "effective bits",
    "size": "the plan's size",
    "loss": "the loss of perplexity",
    "kld": "the mean KL divergence",
    "latency": "the latency",
}


def figure_text(name: Measure, value: float) -> str:
    """A figure as people write it."""
    if name == "bits":
        return f"{value:.3f} bits"
    if name == "size":
        return f"{value / 1e6:,.2f} MB"
    if name == "loss":
        return f"{value:.2%}"
    return f"{value:.4g} nats" if name == "kld" else f"{value * 1e3:.3f} ms"


def impossible(problem: Problem, promise: Promise) -> PromiseError:
    """No choice of candidates keeps the promise on paper: a promise of bits or size."""
    name = promise.bounds[0]
    others = [
        f"with the least {_NAMES[one]} possible, {figure_text(one, least(problem, AXES[one]).on(AXES[one]))}" for one in promise.bounds
    ]
    best = least(problem, AXES[name]).on(AXES[name])
    return PromiseError(
        f"{promise.option(name)} cannot be kept: these candidates give {figure_text(name, best)} at least, "
        f"{_over(best, promise.limits[name])} too much{'' if len(others) < 2 else ' (' + '; '.join(others[1:]) + ')'}.",
        hint=f"Allow {figure_text(name, best)}, add candidates of fewer bits, or drop pins and exclusions.",
    )


def missed(problem: Problem, promise: Promise, outcome: Outcome) -> PromiseError:
    """Plans were built and measured, and none keeps the promise."""
    best = outcome.best
    name = max(promise.limits, key=lambda one: best.upper[one] / promise.limits[one])
    count = len(outcome.tried)
    built = f"{count} plans were built and measured" if count > 1 else "one plan was built and measured"
    message = (
        f"{promise.option(name)} is not kept: {built}, and the nearest has {figure_text(name, best.upper[name])}, "
        f"{_over(best.upper[name], promise.limits[name])} too much, with {_rest(best, promise, name)}."
    )
    return PromiseError(message, hint=_needed(problem, promise, outcome, name))


def _over(value: float, limit: float) -> str:
    return f"{value / limit - 1:.1%}" if value < 3 * limit else f"{value / limit:.1f} times the limit, that is {value - limit:.3g}"


def _rest(best: Built, promise: Promise, name: Measure) -> str:
    others = [f"{_NAMES[one]} {figure_text(one, best.upper[one])}" for one in promise.limits if one != name]
    return ", ".join(others) or f"{best.solution.bits:.3f} effective bits"


def _needed(problem: Problem, promise: Promise, outcome: Outcome, name: Measure) -> str:
    """What to ask for instead."""
    best = outcome.best
    value = figure_text(name, best.upper[name])
    if name in promise.qualities:
        return f"Ask for {value} at the tightest, add wider candidates (BF16, FP32), or drop pins that are narrow."
    if not promise.qualities:
        return f"Allow {value}, add {'faster' if name == 'latency' else 'narrower'} candidates, or drop pins and exclusions."
    quality = promise.qualities[0]
    scale = outcome.scale(promise)
    axis = AXES[name]
    limit = promise.limits[name] * (best.solution.on(axis) / best.upper[name])
    other = solve(problem, "loss", {axis: limit})
    allowed = f"Under {promise.option(quality)} it takes {value}."
    if other is None:
        return f"{allowed} No mix of these candidates takes less than {figure_text(name, least(problem, axis).on(axis))}."
    return f"{allowed} With {promise.option(name)}, expect {_NAMES[quality]} of about {figure_text(quality, other.loss * scale)}."
