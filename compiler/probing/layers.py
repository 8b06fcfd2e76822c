"""The layers' records: work, time, and which tensors go in and out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from torch import fx

from mixplan.compiler.probing.graph import MOVES, source_of
from mixplan.compiler.probing.record import HeadRecord, LayerRecord, WorkRecord
from mixplan.compiler.probing.watch import Watch
from mixplan.compiler.probing.work import Counter
from mixplan.compiler.weights.base import WeightSource
from mixplan.passes.fx_ops import ATTENTION_TM, EMBEDDING, GROUPED_LINEAR
from mixplan.passes.patterns import is_constant
from mixplan.passes.precision.layers import Layer, weight_of
from mixplan.runtime.cost import Cost, Limits, Work, limit_seconds

__all__ = ["head_records", "layer_records"]

_Kind = Literal["linear", "experts", "embedding", "attention", "other"]


def layer_records(
    module: fx.GraphModule,
    weights: WeightSource,
    layers: Sequence[Layer],
    names: Mapping[fx.Node, str],
    watch: Watch,
    seconds: Mapping[str, float],
    run: Work,
    decode: Work,
    limits: Limits,
) -> tuple[LayerRecord, ...]:
    """Layers in graph order, then attentions, then everything else by op. Times that are modelled are a decode step's, by its roofline."""
    counter = Counter(module, weights)
    parts: list[tuple[Layer | None, _Kind, str, tuple[fx.Node, ...]]] = [(x, _kind(x), x.name, x.nodes) for x in layers]
    taken = {node for layer in layers for node in layer.nodes}
    for node in module.graph.nodes:
        if node.target is ATTENTION_TM:
            parts.append((None, "attention", names[node], (node,)))
            taken.add(node)
    others: dict[str, list[fx.Node]] = {}
    for node in module.graph.nodes:
        if node.op == "call_function" and node not in taken and not is_constant(node) and node.target not in MOVES:
            others.setdefault(str(node.target), []).append(node)
    parts += [(None, "other", op, tuple(nodes)) for op, nodes in others.items()]
    # Views and copies cost time too; they are one more line.
    moves = tuple(n for n in module.graph.nodes if n.op == "call_function" and n.target in MOVES and not is_constant(n))
    steps = [sum((counter.cost(node, decode) for node in nodes), Cost()) for _, _, _, nodes in parts]
    whole = sum(steps, Cost())
    modelled = [limit_seconds(step, limits, max(whole.memory_bytes, 1)) for step in steps]
    measured = [sum(seconds.get(node.name, 0.0) for node in nodes) for _, _, _, nodes in parts]
    moving = sum(seconds.get(node.name, 0.0) for node in moves)
    total, predicted = sum(measured) + moving, sum(modelled)
    records = []
    for (layer, kind, name, nodes), step, time, guess in zip(parts, steps, measured, modelled, strict=True):
        done = sum((counter.cost(node, run) for node in nodes), Cost())
        records.append(
            LayerRecord(
                name=name,
                kind=kind,
                aliases=layer.aliases if layer else (),
                rows=layer.rows if layer else 0,
                columns=layer.columns if layer else 0,
                parameters=layer.rows * layer.columns if layer and layer.parameter else 0,
                stored=_stored(weights, layer) if layer else "",
                input=_input_name(nodes[-1], names) if kind != "other" else "",
                output=names.get(nodes[-1], "") if kind != "other" else "",
                decode=WorkRecord(step.ops, step.bytes),
                run=WorkRecord(done.ops, done.bytes),
                seconds=time,
                measured_share=time / total if total else 0.0,
                modelled_share=guess / predicted if predicted else 0.0,
                input_snr=watch.rounding.get(name, {}),
            )
        )
    if moving:
        records.append(_moving(moving, total))
    return tuple(records)


def _moving(seconds: float, total: float) -> LayerRecord:
    none = WorkRecord()
    return LayerRecord("views and copies", "other", (), 0, 0, 0, "", "", "", none, none, seconds, seconds / total, 0.0)


def _kind(layer: Layer) -> _Kind:
    targets = {node.target for node in layer.nodes}
    return "experts" if GROUPED_LINEAR in targets else "embedding" if targets == {EMBEDDING} else "linear"


def _input_name(node: fx.Node, names: Mapping[fx.Node, str]) -> str:
    source = source_of(node.args[0])
    return names.get(source, "") if isinstance(source, fx.Node) else ""


def _stored(weights: WeightSource, layer: Layer) -> str:
    known = set(weights.names())
    leaves, pending = dict[str, None](), [weight_of(layer.nodes[0])]
    while pending:
        node = pending.pop()
        if node.op == "get_attr" and str(node.target) in known:
            leaves.setdefault(weights.dtype(str(node.target)))
        pending.extend(node.all_input_nodes)
    return " ".join(leaves)


def head_records(watch: Watch) -> tuple[HeadRecord, ...]:
    """Every query head, layer by layer."""
    records = []
    for layer, found in sorted(watch.heads.items()):
        heads, kv_heads = int(found.q.low.numel()), int(found.k.low.numel())
        for head in range(heads):
            kv = head * kv_heads // heads
            records.append(
                HeadRecord(
                    layer=layer,
                    head=head,
                    kv_head=kv,
                    q_absmax=float(found.q.absmax[head]),
                    q_rms=float(found.q.rms[head]),
                    k_absmax=float(found.k.absmax[kv]),
                    k_rms=float(found.k.rms[kv]),
                    v_absmax=float(found.v.absmax[kv]),
                    v_rms=float(found.v.rms[kv]),
                    score_low=float(found.score_low[head]),
                    score_high=float(found.score_high[head]),
                    input_low=float(found.input_low[head]),
                    input_high=float(found.input_high[head]),
                    span=float(found.span[head]),
                    mean_span=float(found.mean_span[head]),
                )
            )
    return tuple(records)
