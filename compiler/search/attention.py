"""Attention layers as groups of the search: the format of keys and values, by head where heads differ, and integer scores.

They weigh nothing, so they are offered for a promise of latency alone, where seconds of each choice were measured on this machine; a choice
that does not spare a noticeable part of the op's time is not offered at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from mixplan.compiler.attention import AttentionRules, Rule
from mixplan.compiler.draft import Draft
from mixplan.compiler.search.kv_choice import KvChoice
from mixplan.compiler.search.solver import Option
from mixplan.compiler.sensitivity.attention_rounding import AttentionLoss
from mixplan.runtime.kv_format import KvFormat

__all__ = ["UNIFORM_CHOICES", "AttentionKind", "AttentionUnit", "attention_options", "attention_rules", "attention_units", "uniform_choice"]

AttentionKind: TypeAlias = tuple[int, int, int, int, int]
"""Query heads, KV heads, sizes of a key and of a value, window: layers of one kind take equally long."""

UNIFORM_CHOICES = (("f16", "f32"), ("i8", "f32"), ("i8", "i8"), ("k8v4", "f32"), ("i4", "f32"))
"""What layers are measured with: format of all heads, and scores. The first is what is kept where nothing else pays."""

_PAYS = 0.96
"""The share of the time of f16 that a choice may take at most; less of a gain is noise."""
_MOST_KEPT = 3


@dataclass(frozen=True)
class AttentionUnit:
    """One attention layer. node: its index in the draft's plan."""

    name: str
    layer: int
    node: int
    kind: AttentionKind

    @property
    def heads(self) -> int:
        """KV heads."""
        return self.kind[1]

    def bits(self, choice: KvChoice) -> float:
        """Bits of each number that the cache keeps, scales counted in."""
        _, heads, k_dim, v_dim, _ = self.kind
        return sum(8 * held.token_bytes(k_dim, v_dim) for held in choice.formats) / (heads * (k_dim + v_dim))


def attention_units(draft: Draft) -> tuple[AttentionUnit, ...]:
    """All attention layers, by number."""
    found = []
    for index, node in enumerate(draft.plan.nodes):
        layer = node.attrs.get("layer")
        if node.op != "attention" or not isinstance(layer, int):
            continue
        spec = draft.plan.attention[layer]
        queries = draft.plan.values[node.inputs[0]].shape[2]
        assert isinstance(queries, int)
        kind = (queries, spec.kv_heads, spec.k_dim, spec.v_dim, spec.window)
        found.append(AttentionUnit(f"attention {layer}", layer, index, kind))
    return tuple(sorted(found, key=lambda unit: unit.layer))


def uniform_choice(unit: AttentionUnit, at: int) -> KvChoice:
    """One of UNIFORM_CHOICES, counted round."""
    held, scores = UNIFORM_CHOICES[at % len(UNIFORM_CHOICES)]
    return KvChoice((KvFormat(held),) * unit.heads, scores)


def attention_options(
    unit: AttentionUnit, loss: AttentionLoss | None, seconds: Mapping[tuple[AttentionKind, str], float]
) -> tuple[Option, ...]:
    """The candidates of a layer: f16, and what was measured to pay. seconds: of a layer of a kind, by the spelling of a uniform choice.

    Beside each format for all heads stand mixes in which its most sensitive heads keep f16: they take the time of their heads.
    """
    wide = uniform_choice(unit, 0)
    usual = seconds.get((unit.kind, str(wide)))
    if loss is None or usual is None:
        return (Option(wide, 0.0, 0.0, 0.0, usual or 0.0),)
    options = [Option(wide, 0.0, 0.0, 0.0, usual)]
    for at in range(1, len(UNIFORM_CHOICES)):
        choice = uniform_choice(unit, at)
        taken = seconds.get((unit.kind, str(choice)))
        if taken is None or taken > usual * _PAYS:
            continue
        lost = loss.of(choice.usual)
        rounding = loss.queries if choice.scores == "i8" else 0.0
        options.append(Option(choice, sum(lost) + rounding, 0.0, 0.0, taken))
        if choice.scores != "f32":
            continue
        worst = sorted(range(unit.heads), key=lambda head: (-lost[head], head))
        for kept in range(1, min(_MOST_KEPT, unit.heads - 1) + 1):
            formats = tuple(wide.formats[0] if head in worst[:kept] else held for head, held in enumerate(choice.formats))
            share = kept / unit.heads
            options.append(
                Option(KvChoice(formats), sum(lost[head] for head in worst[kept:]), 0.0, 0.0, share * usual + (1 - share) * taken)
            )
    return tuple(options)


def attention_rules(units: Sequence[AttentionUnit], choices: Sequence[KvChoice], base: AttentionRules) -> AttentionRules:
    """The choices as the compiler takes them."""
    kv: list[Rule] = []
    scores: list[Rule] = []
    for unit, choice in zip(units, choices, strict=True):
        kv.append(Rule(f"{unit.layer}={choice.usual}", unit.layer, unit.layer, None, str(choice.usual)))
        kv += [
            Rule(f"{unit.layer}.{head}={held}", unit.layer, unit.layer, head, str(held))
            for head, held in enumerate(choice.formats)
            if held != choice.usual
        ]
        if choice.scores != "f32":
            scores.append(Rule(f"{unit.layer}={choice.scores}", unit.layer, unit.layer, None, choice.scores))
    return replace(base, kv_rules=tuple(kv), scores_rules=tuple(scores))
