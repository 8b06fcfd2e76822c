"""The receipt of a search that kept its promise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mixplan.compiler.search.attention import AttentionUnit
from mixplan.compiler.search.curve import pareto, uniform_points
from mixplan.compiler.search.groups import LayerGroup
from mixplan.compiler.search.kv_choice import KvChoice
from mixplan.compiler.search.promise import Measure, Promise
from mixplan.compiler.search.solver import Problem, Solution
from mixplan.runtime.evaluation.measure import Measured
from mixplan.runtime.receipt import Candidate, CurvePoint, LayerChoice, Receipt, Solver

__all__ = ["make_receipt", "quality_figures", "rounded"]

_DIGITS = 6
"""Digits that are kept of what is measured: fewer than two runs with other thread counts agree in."""


def rounded(value: float) -> float:
    """The value with as many digits as a receipt keeps."""
    return float(f"{value:.{_DIGITS}g}")


def quality_figures(quality: Measured) -> dict[str, float]:
    """What the receipt keeps of a measurement; errors of a single window, which there are none of, are left out."""
    names = ("perplexity", "reference_perplexity", "loss", "loss_error", "kld_mean", "kld_error", "kld_median", "kld_p99", "same_top")
    found = {name: float(getattr(quality, name)) for name in names}
    return {name: rounded(value) for name, value in found.items() if value == value}


def make_receipt(
    promise: Promise,
    problem: Problem,
    groups: Sequence[LayerGroup],
    units: Sequence[AttentionUnit],
    solution: Solution,
    reasons: Sequence[str],
    achieved: Mapping[Measure, float],
    quality: Measured,
    facts: Mapping[str, str],
) -> Receipt:
    """Nothing in it depends on how long anything took, but the seconds of a promised latency. reasons: of groups, then of units."""
    count = len(groups)
    attention = tuple(
        LayerChoice(
            unit.name,
            str(options[at].scheme),
            reason,
            tuple(
                Candidate(str(one.scheme), rounded(unit.bits(one.scheme)), rounded(one.loss), rounded(one.seconds))
                for one in options
                if isinstance(one.scheme, KvChoice)
            ),
        )
        for unit, options, at, reason in zip(units, problem.options[count:], solution.choice[count:], reasons[count:], strict=True)
    )
    layers = tuple(
        LayerChoice(
            group.name,
            str(options[at].scheme),
            reason,
            tuple(
                Candidate(str(one.scheme), rounded(one.bits / group.parameters), rounded(one.loss), rounded(one.seconds)) for one in options
            ),
        )
        for group, options, at, reason in zip(groups, problem.options[:count], solution.choice[:count], reasons[:count], strict=True)
    )
    figures = quality_figures(quality)
    chosen = [
        CurvePoint(solution.bits, solution.loss, solution.seconds, "chosen"),
        CurvePoint(solution.bits, figures["kld_mean"], solution.seconds, "measured"),
    ]
    points = [*pareto(problem, "bits", "bits"), *pareto(problem, "seconds", "latency"), *uniform_points(problem), *chosen]
    return Receipt(
        promise={name: promise.texts[name] for name in promise.limits},
        achieved={name: rounded(value) for name, value in achieved.items()},
        # No seconds: equal inputs give equal bytes.
        solver=Solver(solution.status, rounded(solution.gap), None, rounded(solution.loss)),
        layers=layers,
        attention=attention,
        curve=tuple(CurvePoint(rounded(p.bits), rounded(p.loss), rounded(p.seconds or 0.0), p.kind) for p in points),
        measured=figures,
        text=dict(facts),
    )
