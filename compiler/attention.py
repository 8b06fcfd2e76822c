"""What each attention layer keeps in the KV cache and how it scores: the caller's rules, put on the lowered nodes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from mixplan.compiler.lowering import Lowered
from mixplan.runtime.errors import InternalError, OptionError
from mixplan.runtime.kv_format import KvFormat
from mixplan.runtime.plan import AttentionLayer

__all__ = ["KV_FORMATS", "SCORES", "AttentionRules", "Rule", "attention_layers", "head_formats", "parse_rules", "with_scores"]

KV_FORMATS = (KvFormat.f32, KvFormat.f16, KvFormat.i8, KvFormat.i4, KvFormat.k8v4, KvFormat.fp8)
SCORES = ("f32", "i8")
_PLACE = re.compile(r"(\d{1,6})(?:-(\d{1,6})|\.(\d{1,6}))?")


@dataclass(frozen=True)
class Rule:
    """Attention layers [first, last], or one KV head of one layer, are to have `choice`; text is what the caller wrote."""

    text: str
    first: int
    last: int
    head: int | None
    choice: str


@dataclass(frozen=True)
class AttentionRules:
    """The format of all layers' keys and values, and of their scores, but for rules, of which the last that fits wins."""

    kv: str
    kv_rules: tuple[Rule, ...] = ()
    scores: str = "f32"
    scores_rules: tuple[Rule, ...] = ()


def parse_rules(option: str, given: str, allowed: Sequence[str], *, heads: bool) -> tuple[str | None, tuple[Rule, ...]]:
    """Read "i8", or "i8,0=f16,4-7=i4,9.2=f16": what holds everywhere (None where it is not said), and the rules.

    heads: whether a rule may name one head. Raises OptionError.
    """
    everywhere: str | None = None
    rules: list[Rule] = []
    for text in given.split(","):
        place, equals, choice = text.strip().rpartition("=")
        if choice not in allowed:
            raise OptionError(f"{option} has {choice!r}; allowed are {', '.join(allowed)}.")
        if not equals:
            if everywhere is not None:
                raise OptionError(f"{option} {given!r} says twice what holds everywhere: {everywhere} and {choice}.")
            everywhere = choice
            continue
        found = _PLACE.fullmatch(place)
        if found is None or (found[3] and not heads):
            forms = "LAYER, FIRST-LAST or LAYER.HEAD" if heads else "LAYER or FIRST-LAST"
            raise OptionError(f"{option} has {text.strip()!r}; what stands before = is {forms}, in numbers from 0.")
        first = int(found[1])
        last = int(found[2] or first)
        if last < first:
            raise OptionError(f"{option} has {text.strip()!r}: there are no layers from {first} to {last}.")
        rules.append(Rule(text.strip(), first, last, int(found[3]) if found[3] else None, choice))
    return everywhere, tuple(rules)


def attention_layers(lowered: Lowered, rules: AttentionRules) -> tuple[AttentionLayer, ...]:
    """One record for each attention node, by its layer number. OptionError for a rule that matches nothing."""
    found: dict[int, AttentionLayer] = {}
    for node in lowered.nodes:
        if node.op != "attention":
            continue
        keys, values = (lowered.values[node.inputs[i]].shape for i in (1, 2))
        sizes = (keys[2], keys[3], values[3])
        layer, window = node.attrs["layer"], node.attrs["window"]
        assert isinstance(layer, int) and isinstance(window, int)
        if not all(isinstance(size, int) for size in sizes):
            raise InternalError(f"Attention {node.name} has heads whose sizes depend on the step.")
        heads, k_dim, v_dim = (int(size) for size in sizes if isinstance(size, int))
        formats = head_formats(rules, layer, heads)
        alike = len(set(formats)) == 1
        found[layer] = AttentionLayer(
            kv_heads=heads,
            k_dim=k_dim,
            v_dim=v_dim,
            dtype=formats[0] if alike else KvFormat(_choice(rules.kv, rules.kv_rules, layer)),
            window=window,
            heads=() if alike else formats,
        )
    if sorted(found) != list(range(len(found))):
        raise InternalError(f"Attention layers are numbered {sorted(found)}; they must be 0 to {len(found) - 1}.")
    for rule in (*rules.kv_rules, *rules.scores_rules):
        if rule.last >= len(found):
            raise OptionError(f"{rule.text!r} names attention layer {rule.last}; the model has {_numbers(len(found), 'attention layers')}.")
        if rule.head is not None and rule.head >= found[rule.first].kv_heads:
            heads = found[rule.first].kv_heads
            raise OptionError(f"{rule.text!r} names KV head {rule.head}; attention layer {rule.first} has {_numbers(heads, 'KV heads')}.")
    return tuple(found[layer] for layer in range(len(found)))


def with_scores(lowered: Lowered, layers: Sequence[AttentionLayer], rules: AttentionRules) -> Lowered:
    """The same, with the scores of the rules on attention nodes. OptionError where a layer's keys are not integers."""
    nodes = []
    for node in lowered.nodes:
        layer = node.attrs.get("layer")
        choice = _choice(rules.scores, rules.scores_rules, layer) if node.op == "attention" and isinstance(layer, int) else "f32"
        if choice == "f32" or not isinstance(layer, int):
            nodes.append(node)
            continue
        for held, _ in layers[layer].runs:
            if not held.quantized:
                raise OptionError(
                    f"attention_scores asks for {choice} in attention layer {layer}, whose keys are kept in {held.value}.",
                    hint="Integer scores need integer keys: kv_dtype i8, i4 or k8v4 there.",
                )
        nodes.append(msgspec.structs.replace(node, attrs={**node.attrs, "scores": choice}))
    return replace(lowered, nodes=nodes)


def _choice(everywhere: str, rules: Sequence[Rule], layer: int, head: int | None = None) -> str:
    fitting = [rule.choice for rule in rules if rule.first <= layer <= rule.last and rule.head in (None, head)]
    return fitting[-1] if fitting else everywhere


def head_formats(rules: AttentionRules, layer: int, heads: int) -> tuple[KvFormat, ...]:
    """The format of each KV head of a layer."""
    return tuple(KvFormat(_choice(rules.kv, rules.kv_rules, layer, head)) for head in range(heads))


def _numbers(count: int, what: str) -> str:
    return f"{what} 0 to {count - 1}" if count else f"no {what}"
