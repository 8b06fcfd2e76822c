"""Which layers share a decision, over architectures that fuse in different ways."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mixplan.compiler.clock import Clock
from mixplan.compiler.constants import Constants
from mixplan.compiler.draft import Draft, copy_graph, make_draft
from mixplan.compiler.frontends import Captured, open_checkpoint
from mixplan.compiler.frontends.tiny import tiny_model
from mixplan.compiler.options import Options, parse_options
from mixplan.compiler.search.candidates import EXCLUDED, parse_exclusion, restrict
from mixplan.compiler.search.costs import PROBE, StepCosts, make_problem
from mixplan.compiler.search.groups import LayerGroup, find_groups
from mixplan.passes.precision.overrides import Override, parse_override
from mixplan.passes.precision.schemes import parse_scheme
from mixplan.runtime.cost import Work
from mixplan.runtime.errors import OptionError


def _options() -> Options:
    plain: dict[str, Any] = {"overrides": (), "passes": (), "dump": None, "targets": ("reference",), "isa": None}
    return parse_options(
        scheme=str(PROBE), group_size=32, symmetric=True, max_step_tokens=64, seed=0, kv_dtype=None, shard_bytes=1 << 30, **plain
    )


def _draft(captured: Captured, overrides: list[Override] | None = None) -> Draft:
    copied = replace(captured, graph=copy_graph(captured.graph))
    return make_draft(copied, Constants(captured.weights), _options().with_overrides(overrides or ()), Clock(None))


def _found(architecture: str, **config: Any) -> tuple[Captured, Draft, tuple[LayerGroup, ...]]:
    captured = open_checkpoint(tiny_model(architecture, **config)).capture()
    draft = _draft(captured)
    return captured, draft, find_groups(draft)


def _short(groups: tuple[LayerGroup, ...]) -> list[set[str]]:
    return [{layer.removeprefix("model.").removeprefix("transformer.") for layer in group.layers} for group in groups]


def test_llama() -> None:
    _, draft, groups = _found("llama", tie_word_embeddings=False)
    names = _short(groups)
    for index in (0, 1):
        attention = {f"layers.{index}.self_attn.{one}_proj" for one in "qkv"}
        assert attention in names and {f"layers.{index}.mlp.gate_proj", f"layers.{index}.mlp.up_proj"} in names
        assert {f"layers.{index}.mlp.down_proj"} in names
    assert {"lm_head"} in names and {"embed_tokens"} in names and len(groups) == 10
    table = next(group for group in groups if "embed_tokens" in group.name)
    assert not table.takes_int8 and all(group.takes_int8 for group in groups if group is not table)
    assert sum(group.parameters for group in groups) <= draft.bits.parameters


def test_tied_embedding_and_head_are_one() -> None:
    captured, _, groups = _found("gemma", tie_word_embeddings=True)
    table = [group for group in groups if "model.embed_tokens" in group.layers]
    assert len(table) == 1 and table[0].ops[0] == "embedding" and table[0].takes_int8
    assert not any("lm_head" in group.name for group in groups)
    menu = restrict(groups, [parse_scheme("W8A16")], [parse_override("lm_head=BF16")], [], captured.tied)
    assert menu.options[groups.index(table[0])] == (parse_scheme("BF16"),)


def test_experts_of_a_layer_are_one_and_their_router_is_not() -> None:
    _, _, groups = _found("mixtral")
    experts = [group for group in groups if "grouped_linear" in group.ops]
    assert len(experts) == 4 and all(group.weights[0].copies == 4 and not group.takes_int8 for group in experts)
    assert [group for group in groups if "gate" in group.name and group.rows == 4]


@pytest.mark.parametrize("architecture", ["gpt2", "phi3", "qwen2", "starcoder2"])
def test_what_is_one_group_is_stored_in_one_format_and_costs_are_exact(architecture: str) -> None:
    """Any assignment to groups is what the plan then counts and stores, to the bit and, but for padding between tensors, to the byte."""
    captured, draft, groups = _found(architecture)
    schemes = [parse_scheme(name) for name in ("W4A16:g32", "W8A8", "BF16", "W8A16:g32", "W4A8:g64,asym")]
    loss = {(group.name, str(scheme)): 1.0 for group in groups for scheme in schemes}
    problem = make_problem(groups, [schemes] * len(groups), loss, draft, StepCosts(draft, Work.decode(16)))
    choice = [index % len(schemes) for index in range(len(groups))]
    overrides = [Override(layer, schemes[at], False) for group, at in zip(groups, choice, strict=True) for layer in group.layers]
    mixed = _draft(captured, overrides)
    assert mixed.bits.achieved == pytest.approx(problem.total(choice, "bits"), abs=1e-12)
    assert problem.total(choice, "size") == pytest.approx(mixed.layout.nbytes, rel=0.03)
    assert {group.layers for group in find_groups(mixed)} == {group.layers for group in groups}
    assert problem.total(choice, "seconds") > 0


def test_pins_and_exclusions_bind_the_whole_group() -> None:
    captured, _, groups = _found("llama")
    schemes = [parse_scheme("W4A16"), parse_scheme("W8A16"), parse_scheme("W8A8")]
    menu = restrict(groups, schemes, [parse_override("re:0.*q_proj$=W8A16")], [parse_exclusion("re:1.mlp.up_proj")], captured.tied)
    options = {group.name: found for group, found in zip(groups, menu.options, strict=True)}
    reasons = {group.name: why for group, why in zip(groups, menu.fixed, strict=True)}
    attention = next(name for name in options if "layers.0.self_attn.k_proj" in name)
    gated = next(name for name in options if "layers.1.mlp.gate_proj" in name)
    assert options[attention] == (parse_scheme("W8A16"),) and reasons[attention] == "pinned by re:0.*q_proj$=W8A16"
    assert options[gated] == (EXCLUDED,) and reasons[gated] == "excluded by re:1.mlp.up_proj"
    assert options["model.layers.0.mlp.down_proj"] == tuple(schemes)


def test_pins_that_pull_a_group_apart() -> None:
    captured, _, groups = _found("llama")
    pins = [parse_override("model.layers.0.self_attn.q_proj=W8A16"), parse_override("model.layers.0.self_attn.k_proj=BF16")]
    with pytest.raises(OptionError, match=r"computed as one cannot have different schemes: model\.layers\.0.self_attn.q_proj W8A16"):
        restrict(groups, [parse_scheme("W4A16")], pins, [], captured.tied)
    with pytest.raises(OptionError, match="matches no layer"):
        restrict(groups, [parse_scheme("W4A16")], [parse_override("q_prj=W8A16")], [], captured.tied)


def test_a_table_has_no_input_to_round() -> None:
    captured, _, groups = _found("llama", tie_word_embeddings=False)
    schemes = [parse_scheme(name) for name in ("W8A8", "W8A16", "W4A8")]
    menu = restrict(groups, schemes, [], [], captured.tied)
    table = next(index for index, group in enumerate(groups) if not group.takes_int8)
    assert menu.options[table] == (parse_scheme("W8A16"), parse_scheme("W4A8"))
