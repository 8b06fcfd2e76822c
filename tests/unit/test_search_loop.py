"""The loop over plans that are only pretended: what is measured differs from what was predicted; the promise is kept or the miss told."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from mixplan.compiler.search.budget import Budget, Offset
from mixplan.compiler.search.failure import impossible, missed
from mixplan.compiler.search.loop import MOST_ATTEMPTS, Outcome, search
from mixplan.compiler.search.promise import Measure, Promise, parse_promise
from mixplan.compiler.search.reasons import choice_reasons, going_rate
from mixplan.compiler.search.solver import Option, Problem, Solution, least, solve
from mixplan.passes.precision.schemes import parse_scheme

_SCHEMES = {4.5: "W4A16:g32", 6.5: "W6A16:g32", 8.5: "W8A16:g32", 16.0: "BF16"}


def _problem(groups: int = 40) -> Problem:
    generator = random.Random(7)
    options = []
    for _ in range(groups):
        count, loss = 1 << generator.randrange(12, 18), generator.lognormvariate(-4, 1)
        options.append(
            tuple(
                Option(parse_scheme(name), loss * 4.0 ** -(bits - 4), count * bits, count * bits / 8, count * bits / 8e9)
                for bits, name in _SCHEMES.items()
            )
        )
    return Problem(tuple(options), int(sum(one[-1].bits for one in options) / 16), {"bits": 5e4, "size": 1e4, "seconds": 1e-5})


@dataclass
class _Plan:
    solution: Solution
    upper: dict[Measure, float]


def _run(promise: Promise, truth: Callable[[Solution], dict[Measure, float]], problem: Problem) -> tuple[Outcome | None, list[_Plan]]:
    forgotten: list[Any] = []
    outcome = search(problem, promise, lambda solution: _Plan(solution, truth(solution)), forgotten.append)
    if outcome is not None:
        assert len(forgotten) == len(outcome.tried) - 1 and outcome.best not in forgotten
    return outcome, forgotten


def _promise(**options: Any) -> Promise:
    found = parse_promise(**options)
    assert found is not None
    return found


@pytest.mark.parametrize("factor", [0.2, 0.7, 1.0, 1.9, 6.0])
@pytest.mark.parametrize("power", [0.7, 1.0, 1.3])
def test_quality_is_kept_and_used_up(factor: float, power: float) -> None:
    """Whatever measured is of predicted, the plan found is nearly the least one that keeps the promise."""
    problem, promise = _problem(), _promise(max_kld=0.1)

    def truth(solution: Solution) -> dict[Measure, float]:
        return {"kld": factor * solution.loss**power}

    outcome, _ = _run(promise, truth, problem)
    assert outcome is not None and outcome.kept and outcome.best.upper["kld"] <= 0.1
    best = solve(problem, "bits", {"loss": (0.1 / factor) ** (1 / power)})
    assert best is not None and outcome.best.solution.bits <= best.bits + 0.12
    assert len(outcome.tried) <= 5


def test_noise_does_not_break_it() -> None:
    problem, promise, generator = _problem(), _promise(max_loss="1%"), random.Random(3)

    def truth(solution: Solution) -> dict[Measure, float]:
        return {"loss": solution.loss * 1.4 * generator.uniform(0.85, 1.15) - 0.0005}

    outcome, _ = _run(promise, truth, problem)
    assert outcome is not None and outcome.kept and len(outcome.tried) <= MOST_ATTEMPTS
    assert outcome.best.upper["loss"] <= 0.01


def test_bits_take_one_plan() -> None:
    problem = _problem()
    outcome, _ = _run(_promise(bits=6.0), lambda solution: {"bits": solution.bits}, problem)
    assert outcome is not None and outcome.kept and len(outcome.tried) == 1
    assert 5.95 < outcome.best.upper["bits"] <= 6.0


def test_size_learns_what_stands_beside_the_weights() -> None:
    problem = _problem()
    limit = least(problem, "size").size * 1.5
    outcome, _ = _run(_promise(max_size=int(limit)), lambda solution: {"size": solution.size + 77_777}, problem)
    assert outcome is not None and outcome.kept and len(outcome.tried) == 2
    assert limit * 0.995 < outcome.best.upper["size"] <= limit


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.3])
def test_latency_is_kept_and_used_up(factor: float) -> None:
    problem = _problem()
    limit = least(problem, "seconds").seconds * 2 * factor
    outcome, _ = _run(_promise(max_latency=limit), lambda solution: {"latency": factor * solution.seconds + 2e-6}, problem)
    assert outcome is not None and outcome.kept
    assert limit * 0.94 < outcome.best.upper["latency"] <= limit


def test_of_quality_and_cost_the_cost_is_minimised() -> None:
    problem, promise = _problem(), _promise(max_kld=0.1, bits=12)

    def truth(solution: Solution) -> dict[Measure, float]:
        return {"kld": 2 * solution.loss, "bits": solution.bits}

    outcome, _ = _run(promise, truth, problem)
    best = solve(problem, "bits", {"loss": 0.05})
    assert outcome is not None and outcome.kept and best is not None
    assert best.bits - 1e-9 <= outcome.best.upper["bits"] <= best.bits + 0.12


def test_what_cannot_be_kept_on_paper() -> None:
    problem, promise = _problem(), _promise(bits=4.4)
    outcome, _ = _run(promise, lambda solution: pytest.fail("nothing to build"), problem)
    assert outcome is None
    error = impossible(problem, promise)
    assert error.exit_code == 2
    assert "--bits 4.4 cannot be kept" in error.message and f"{least(problem, 'bits').bits:.3f} bits at least" in error.message
    assert "add candidates of fewer bits" in str(error.hint)


def test_a_quality_that_no_candidate_has() -> None:
    problem, promise = _problem(), _promise(max_kld=1e-9)
    outcome, _ = _run(promise, lambda solution: {"kld": solution.loss}, problem)
    assert outcome is not None and not outcome.kept
    error = missed(problem, promise, outcome)
    assert "--max-kld 1e-09 is not kept: one plan was built and measured, and the nearest has" in error.message
    assert "times the limit" in error.message and "add wider candidates" in str(error.hint)


def test_a_cost_that_the_quality_does_not_allow() -> None:
    problem, promise = _problem(), _promise(max_kld=0.01, bits=5)

    def truth(solution: Solution) -> dict[Measure, float]:
        return {"kld": 2 * solution.loss, "bits": solution.bits}

    outcome, _ = _run(promise, truth, problem)
    assert outcome is not None and outcome.kept
    error = missed(problem, promise, outcome)
    at_five = solve(problem, "loss", {"bits": 5.0})
    assert at_five is not None
    assert "--bits 5 is not kept" in error.message
    assert f"With --bits 5, expect the mean KL divergence of about {2 * at_five.loss:.4g} nats" in str(error.hint)


def test_a_latency_that_nothing_has() -> None:
    problem, promise = _problem(), _promise(max_latency=1e-6)
    outcome, _ = _run(promise, lambda solution: {"latency": solution.seconds}, problem)
    assert outcome is not None and not outcome.kept
    assert "faster candidates" in str(missed(problem, promise, outcome).hint)


def test_budgets() -> None:
    budget = Budget(limit=1.0, start=1.0)
    assert budget.value() == 1.0
    budget.add(1.0, 2.0)
    assert budget.value() == pytest.approx(0.49) and budget.scale == 2.0
    budget.add(0.49, 0.5)
    assert 0.49 < budget.value() < 1.0
    budget.add(0.7, 0.99)
    assert 0.7 < budget.value() < 1.0
    offset = Offset(100.0)
    offset.add(99.0, 104.0)
    assert offset.value() == 95.0


def test_reasons_name_the_neighbours_and_the_going_rate() -> None:
    problem = _problem()
    found = solve(problem, "loss", {"bits": 7.0})
    assert found is not None
    reasons = choice_reasons(problem, found, "bits", ["pinned by x=BF16", *[""] * (len(problem.options) - 1)])
    assert reasons[0] == "pinned by x=BF16"
    middle = next(reason for reason, at in zip(reasons[1:], found.choice[1:], strict=True) if at == 1)
    assert middle.startswith("W4A16:g32 would spare") and "W8A16:g32 would take" in middle and "elsewhere that buys" in middle
    assert going_rate(problem, found, "bits") > 0
