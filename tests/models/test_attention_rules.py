"""Formats of keys and values by layer and head, as written on the command line: which rule wins, and what a plan makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mixplan.compiler.attention import KV_FORMATS, SCORES, AttentionRules, head_formats, parse_rules
from mixplan.compiler.pipeline import compile as compile_plan
from mixplan.runtime import load
from mixplan.runtime.kv_format import KvFormat
from mixplan.runtime.plan_io import read_plan


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("i8", ["i8 i8", "i8 i8", "i8 i8"]),
        ("1=i8", ["f16 f16", "i8 i8", "f16 f16"]),
        ("i4, 1-2=i8, 2.1=f32", ["i4 i4", "i8 i8", "i8 f32"]),
        ("2.1=f32,1-2=i8", ["f16 f16", "i8 i8", "i8 i8"]),  # the last one wins
        ("0.0=k8v4", ["k8v4 f16", "f16 f16", "f16 f16"]),
    ],
)
def test_rules(text: str, wanted: list[str]) -> None:
    everywhere, exceptions = parse_rules("kv_dtype", text, KV_FORMATS, heads=True)
    rules = AttentionRules(everywhere or "f16", exceptions)
    assert [" ".join(head_formats(rules, layer, 2)) for layer in range(3)] == wanted


def test_scores_are_chosen_by_layer() -> None:
    everywhere, exceptions = parse_rules("attention_scores", "4-20=i8,7=f32", SCORES, heads=False)
    assert everywhere is None
    assert [(rule.first, rule.last, rule.head, rule.choice) for rule in exceptions] == [(4, 20, None, "i8"), (7, 7, None, "f32")]


def test_a_plan_keeps_the_formats(tiny_llama_dir: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"targets": ("reference",), "max_step_tokens": 32}
    compile_plan(tiny_llama_dir, output=tmp_path / "a.plan", kv_dtype="i8,0.1=f16", attention_scores="1=i8", **options)
    plan = read_plan(tmp_path / "a.plan").plan
    first, second = plan.attention[:2]
    assert first.runs[:2] == ((KvFormat.i8, 1), (KvFormat.f16, 1))
    assert second.dtype is KvFormat.i8
    assert second.heads == ()
    scores = {node.attrs["layer"]: node.attrs.get("scores", "f32") for node in plan.nodes if node.op == "attention"}
    assert scores == {layer: "i8" if layer == 1 else "f32" for layer in range(len(plan.attention))}
    assert plan.provenance.options["kv_dtype"] == "i8,0.1=f16"
    assert plan.provenance.options["attention_scores"] == "1=i8"
    with load(tmp_path / "a.plan") as model:
        assert model.metrics().kv_bytes_per_token == sum(layer.token_bytes for layer in plan.attention)
        assert model.prefill([1, 2, 3]).shape == (plan.model.vocab_size,)
