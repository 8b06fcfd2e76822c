"""The integer program against every choice there is, its limits to the last bit, and the curve."""

from __future__ import annotations

import itertools
import random

import pytest

from mixplan.compiler.search.curve import hull, pareto, steps, uniform_points
from mixplan.compiler.search.solver import Axis, Option, Problem, least, solve
from mixplan.passes.precision.schemes import parse_scheme

_SCHEMES = [parse_scheme(name) for name in ("W4A16:g32", "W4A16:g64", "W8A16", "BF16")]


def _problem(seed: int, groups: int = 5) -> Problem:
    generator = random.Random(seed)
    options = []
    for _ in range(groups):
        count = generator.choice((4096, 8192, 65536))
        loss = generator.lognormvariate(-6, 1.5)
        options.append(
            tuple(
                Option(
                    scheme,
                    loss * 4.0 ** -(bits * generator.uniform(0.9, 1.1)),
                    count * bits,
                    count * bits // 8 + generator.randrange(64),
                    count * bits / generator.uniform(1e9, 2e9),
                )
                for scheme, bits in zip(_SCHEMES, (4.5, 4.25, 8.125, 16.0), strict=True)
            )
        )
    parameters = int(sum(one[-1].bits for one in options) / 16)
    return Problem(tuple(options), parameters, {"bits": 1000.0, "size": 500.0, "seconds": 1e-6})


def _brute(problem: Problem, minimise: Axis, limits: dict[Axis, float]) -> float | None:
    found = [
        problem.total(choice, minimise)
        for choice in itertools.product(*(range(len(options)) for options in problem.options))
        if all(problem.total(choice, axis) <= limit for axis, limit in limits.items())
    ]
    return min(found, default=None)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("axis", ["bits", "size", "seconds"])
def test_least_loss_under_a_budget(seed: int, axis: Axis) -> None:
    problem = _problem(seed)
    low, high = least(problem, axis).on(axis), problem.total([3] * 5, axis)
    for share in (0.0, 0.2, 0.5, 0.9, 1.0):
        limit = low + share * (high - low)
        found = solve(problem, "loss", {axis: limit})
        wanted = _brute(problem, "loss", {axis: limit})
        assert found is not None and wanted is not None
        assert found.on(axis) <= limit
        assert found.loss <= wanted * 1.001 and found.status == "optimal"


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("axis", ["bits", "size", "seconds"])
def test_least_cost_under_a_loss(seed: int, axis: Axis) -> None:
    problem = _problem(seed)
    for factor in (1.0, 1.5, 10.0, 1000.0):
        limit = least(problem, "loss").loss * factor
        found = solve(problem, axis, {"loss": limit})
        wanted = _brute(problem, axis, {"loss": limit})
        assert found is not None and wanted is not None
        assert found.loss <= limit and found.on(axis) <= wanted * 1.001


def test_two_limits() -> None:
    problem = _problem(3)
    bits, seconds = 7.0, problem.total([1, 1, 2, 0, 2], "seconds")
    found = solve(problem, "loss", {"bits": bits, "seconds": seconds})
    assert found is not None and found.bits <= bits and found.seconds <= seconds
    wanted = _brute(problem, "loss", {"bits": bits, "seconds": seconds})
    assert wanted is not None and found.loss <= wanted * 1.001


def test_nothing_keeps_the_limit() -> None:
    problem = _problem(1)
    assert solve(problem, "loss", {"bits": least(problem, "bits").bits * 0.999}) is None
    assert solve(problem, "bits", {"loss": least(problem, "loss").loss * 0.999}) is None
    exact = solve(problem, "loss", {"bits": least(problem, "bits").bits})
    assert exact is not None and exact.bits == least(problem, "bits").bits


def test_the_same_problem_gives_the_same_choice() -> None:
    problem = _problem(2, groups=60)
    found = [solve(problem, "loss", {"bits": 6.0}) for _ in range(2)]
    assert found[0] == found[1] and found[0] is not None
    assert 5.99 < found[0].bits <= 6.0


def test_equals_are_told_apart_by_what_else_they_cost() -> None:
    """Of two options with the same loss and bits, the quicker one."""
    slow, quick = (Option(_SCHEMES[0], 0.1, 100.0, 10.0, seconds) for seconds in (2.0, 1.0))
    found = solve(Problem(((slow, quick),), 10, {}), "loss", {"bits": 20.0})
    assert found is not None and found.choice == (1,)


def test_hull_and_curve() -> None:
    options = [Option(_SCHEMES[0], loss, bits, bits, bits) for loss, bits in ((8.0, 1.0), (7.9, 2.0), (4.0, 3.0), (9.0, 3.5), (1.0, 9.0))]
    assert hull(options, "bits") == [0, 2, 4]
    problem = _problem(4, groups=30)
    start, found = steps(problem, "bits")
    assert [step.rate for step in found] == sorted((step.rate for step in found), reverse=True)
    at = dict(enumerate(start))
    for step in found:
        assert at[step.group] == step.before
        at[step.group] = step.option
    points = pareto(problem, "bits", "bits")
    assert [p.bits for p in points] == sorted(p.bits for p in points)
    assert [p.loss for p in points] == sorted((p.loss for p in points), reverse=True)
    for point in points[:: len(points) // 5]:
        best = solve(problem, "loss", {"bits": point.bits})
        assert best is not None and point.loss <= best.loss * 1.02
    assert {p.kind for p in uniform_points(problem)} == {f"uniform {scheme}" for scheme in _SCHEMES}
