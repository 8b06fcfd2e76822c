"""Attention layers as groups of a search: what is offered, and how a choice reaches the compiler."""

from __future__ import annotations

import pytest
import torch

from mixplan.compiler.attention import AttentionRules, head_formats
from mixplan.compiler.search.attention import UNIFORM_CHOICES, AttentionUnit, attention_options, attention_rules, uniform_choice
from mixplan.compiler.search.curve import uniform_points
from mixplan.compiler.search.kv_choice import KvChoice
from mixplan.compiler.search.solver import Option, Problem, solve
from mixplan.compiler.sensitivity.attention_rounding import AttentionLoss
from mixplan.passes.precision.schemes import parse_scheme
from mixplan.runtime.kv_format import KvFormat

_UNIT = AttentionUnit("attention 1", 1, 7, (6, 3, 64, 64, 0))
_LOSS = AttentionLoss(
    {8: torch.tensor([1e-5, 3e-5, 2e-5]), 4: torch.tensor([1e-3, 9e-3, 2e-3])},
    {8: torch.tensor([1e-6, 1e-6, 1e-6]), 4: torch.tensor([1e-4, 1e-4, 1e-4])},
    4e-5,
)


def timed(**seconds: float) -> dict[tuple[tuple[int, int, int, int, int], str], float]:
    """Seconds by the spelling of a choice for all heads."""
    return {(_UNIT.kind, f"KV {name}"): value for name, value in seconds.items()}


def test_only_what_pays_is_offered() -> None:
    options = attention_options(_UNIT, _LOSS, timed(f16=10e-6, i8=9.8e-6, k8v4=12e-6, i4=6e-6))
    assert [str(option.scheme) for option in options] == ["KV f16", "KV i4", "KV i4 but head 1 f16", "KV f16 but head 0 i4"]
    assert [option.loss for option in options] == pytest.approx([0.0, 12.3e-3, 3.2e-3, 1.1e-3])
    assert [option.seconds for option in options] == pytest.approx([10e-6, 6e-6, 10e-6 / 3 + 4e-6, 20e-6 / 3 + 2e-6])
    assert all(option.bits == option.size == 0.0 for option in options)


def test_integer_scores_cost_what_rounding_queries_does() -> None:
    seconds = {**timed(f16=10e-6, i8=8e-6), (_UNIT.kind, "KV i8, i8 scores"): 7e-6}
    by_name = {str(option.scheme): option.loss for option in attention_options(_UNIT, _LOSS, seconds)}
    assert by_name["KV i8, i8 scores"] - by_name["KV i8"] == pytest.approx(4e-5)


@pytest.mark.parametrize(("loss", "seconds"), [(None, timed(f16=1e-5, i4=1e-6)), (_LOSS, {}), (_LOSS, timed(i4=1e-6))])
def test_what_is_not_known_is_not_offered(
    loss: AttentionLoss | None, seconds: dict[tuple[tuple[int, int, int, int, int], str], float]
) -> None:
    assert [str(option.scheme) for option in attention_options(_UNIT, loss, seconds)] == ["KV f16"]


def test_rules_say_what_was_chosen() -> None:
    chosen = [
        KvChoice((KvFormat.i4, KvFormat.f16, KvFormat.i4)),
        KvChoice((KvFormat.i8,) * 3, "i8"),
        KvChoice((KvFormat.f16,) * 3),
    ]
    units = [AttentionUnit(f"attention {layer}", layer, layer, _UNIT.kind) for layer in range(3)]
    rules = attention_rules(units, chosen, AttentionRules("f16"))
    assert [head_formats(rules, layer, 3) for layer in range(3)] == [choice.formats for choice in chosen]
    assert [(rule.first, rule.last, rule.choice) for rule in rules.scores_rules] == [(1, 1, "i8")]


def test_layers_are_dealt_every_choice() -> None:
    dealt = [str(uniform_choice(_UNIT, at)) for at in range(len(UNIFORM_CHOICES))]
    assert dealt == ["KV f16", "KV i8", "KV i8, i8 scores", "KV k8v4", "KV i4"] and str(uniform_choice(_UNIT, 5)) == "KV f16"


def test_bits_of_what_is_kept_count_scales() -> None:
    assert _UNIT.bits(uniform_choice(_UNIT, 0)) == 16.0
    assert _UNIT.bits(KvChoice((KvFormat.i8,) * 3)) == 8 + 32 / 64


def test_the_solver_trades_attention_against_weights() -> None:
    """Seconds are spent where they save most loss, on weights or on keys and values; bits and size are untouched by the latter."""
    weights = tuple(
        Option(parse_scheme(name), loss, bits, bits / 8, seconds)
        for name, loss, bits, seconds in (("W4A8:g32", 0.01, 40.0, 20e-6), ("W8A8", 0.001, 80.0, 40e-6))
    )
    attention = attention_options(_UNIT, _LOSS, timed(f16=30e-6, i8=20e-6))
    problem = Problem((weights, attention), 10, {})
    found = solve(problem, "loss", {"seconds": 62e-6})
    assert found is not None and [str(options[at].scheme) for options, at in zip(problem.options, found.choice, strict=True)] == [
        "W8A8",
        "KV i8",
    ]
    assert found.bits == 8.0
    uniform = {point.kind: point.seconds for point in uniform_points(problem)}
    assert uniform == {"uniform W4A8:g32": pytest.approx(50e-6), "uniform W8A8": pytest.approx(70e-6)}
