"""Which span of a plan is to blame: each alone, on the original's inputs, and all up to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mixplan.compiler.debug.original import Original
from mixplan.compiler.debug.report import DebugReport, Figures, SpanReport, blame_order
from mixplan.compiler.debug.spans import find_spans
from mixplan.compiler.frontends import open_checkpoint
from mixplan.compiler.replay import load_parameters
from mixplan.compiler.sample_text import sample_tokens
from mixplan.compiler.signal import Signal, compare
from mixplan.compiler.sources import SourceHashes
from mixplan.compiler.verify_report import Coverage, source_warnings
from mixplan.runtime import load
from mixplan.runtime.errors import RequestError
from mixplan.runtime.evaluation.distributions import divergence
from mixplan.runtime.model import Model
from mixplan.runtime.plan import Plan
from mixplan.runtime.progress import Progress

if TYPE_CHECKING:
    from torch import nn

__all__ = ["DEBUG_TOKENS", "debug_plan"]

Array: TypeAlias = NDArray[Any]
Floats: TypeAlias = NDArray[np.float32]

DEBUG_TOKENS = 64
"""Tokens of the text, unless said otherwise."""
# Above this SNR, in dB, the difference is rounding in float32, and its part in the divergence need not be computed.
_EXACT = 100.0


def debug_plan(
    plan: str | Path,
    model: str | Path | nn.Module,
    *,
    text: str | None = None,
    tokens: int = DEBUG_TOKENS,
    worst: int | None = None,
    progress: Progress | None = None,
) -> DebugReport:
    """Compare every span of the plan with the original, in float32 by torch, on the first `tokens` tokens of a text.

    The plan's nodes run on the reference device, since no other can be looked into; the logits are compared as the plan's own devices
    compute them, too. The KLD of the logits is computed for the `worst` spans by isolated SNR, for all by default: each takes two partial
    runs of the original. RequestError for a model of another vocabulary. Holds the model's weights in memory.
    """
    checkpoint = open_checkpoint(model)
    try:
        captured = checkpoint.capture()
        with SourceHashes(captured.source.files) as hashes:
            load_parameters(captured.graph, captured.weights)
            digests = hashes.result()
    finally:
        checkpoint.close()
    with load(plan, max_sequences=1) as running:
        record = running.plan
        if record.model.vocab_size != captured.model.vocab_size:
            raise RequestError(
                f"The plan has a vocabulary of {record.model.vocab_size}, the model one of {captured.model.vocab_size}.",
                hint=f"Give the checkpoint that the plan was compiled from: {record.provenance.source_name}.",
            )
        ids = sample_tokens(running, text, min(tokens, running.max_step_tokens))
        logits = _step(running, ids)
        placement = tuple(f"{place.region}: {place.device} ({place.isa})" for place in running.placement)
    original = Original(captured.graph, ids)
    seen, wanted = original.record({node.origin for node in record.nodes if node.origin})
    with load(plan, device="reference", verify="manifest", max_sequences=1) as reference:
        isolated, skipped = _isolated(reference, ids, seen)
        cumulative, shown = _cumulative(reference, ids, set(isolated))
    spans = find_spans(record, captured.graph, isolated)
    signals = {
        span.node: (compare(isolated[span.node], seen[span.origin]), compare(cumulative[span.node], seen[span.origin])) for span in spans
    }
    inexact = sorted(
        (s for s in spans if not signals[s.node][0].snr > _EXACT or not signals[s.node][1].snr > _EXACT),
        key=lambda s: signals[s.node][0].snr,
    )
    judged = {span.origin: span.node for span in inexact[:worst]}
    found: dict[str, tuple[float, float]] = {}
    token_ids = np.asarray(ids, np.int64)

    def judge(origin: str, alone: Floats, so_far: Floats) -> None:
        found[judged[origin]] = (_kld(alone, wanted, token_ids), _kld(so_far, wanted, token_ids))
        if progress is not None:
            progress("blame", len(found) / len(judged))

    by_origin = [{span.origin: made[span.node] for span in spans} for made in (isolated, cumulative)]
    original.blame(by_origin[0], by_origin[1], judge, judged)
    exact = {span.node for span in spans} - {span.node for span in inexact}
    rows = [
        SpanReport(span, *_figures(signals[span.node], found.get(span.node, (0.0, 0.0) if span.node in exact else (None, None))))
        for span in spans
    ]
    return DebugReport(
        tokens=len(ids),
        spans=tuple(sorted(rows, key=blame_order)),
        coverage=_coverage(record, isolated, skipped, original.tensors),
        kld_reference=_kld(shown, wanted, token_ids),
        kld_devices=_kld(logits, wanted, token_ids),
        placement=placement,
        warnings=source_warnings(record, digests),
    )


def _step(model: Model, ids: Sequence[int], tap: Any = None) -> Floats:
    return model.step(ids, list(range(len(ids))), [0] * len(ids), "all", tap=tap)


def _isolated(model: Model, ids: Sequence[int], seen: Mapping[str, Array]) -> tuple[dict[str, Array], Counter[str]]:
    """By node: what it computes where every value that the original has, too, is the original's; and why other nodes are left out."""
    by_value = {model.plan.values[node.outputs[0]].name: node for node in model.plan.nodes}
    made: dict[str, Array] = {}
    skipped: Counter[str] = Counter()

    def tap(name: str, array: Array) -> Array | None:
        node = by_value.get(name)
        if node is None:
            return None
        if node.origin not in seen:
            skipped["made by fusion, without a counterpart"] += 1
            return None
        wanted = seen[node.origin]
        if wanted.shape != array.shape:
            skipped["of another shape than their counterpart"] += 1
            return None
        made[node.name] = array.copy()
        return wanted.astype(array.dtype)

    _step(model, ids, tap)
    return made, skipped


def _cumulative(model: Model, ids: Sequence[int], names: set[str]) -> tuple[dict[str, Array], Floats]:
    """By node: what it computes in the plan as it is; and the logits."""
    by_value = {model.plan.values[node.outputs[0]].name: node.name for node in model.plan.nodes if node.name in names}
    made: dict[str, Array] = {}

    def tap(name: str, array: Array) -> None:
        if name in by_value:
            made[by_value[name]] = array.copy()

    return made, _step(model, ids, tap)


def _kld(logits: Floats, wanted: Floats, ids: NDArray[np.int64]) -> float:
    return float(divergence(logits, wanted, ids).kld.mean())


def _figures(signals: tuple[Signal, Signal], klds: tuple[float | None, float | None]) -> tuple[Figures, Figures]:
    isolated, cumulative = (Figures(signal.snr, signal.cosine, kld) for signal, kld in zip(signals, klds, strict=True))
    return isolated, cumulative


def _coverage(plan: Plan, compared: Mapping[str, Array], skipped: Counter[str], tensors: set[str]) -> Coverage:
    fused = tensors - {node.origin for node in plan.nodes}
    return Coverage(len(compared), len(plan.nodes), dict(sorted(skipped.items())), len(fused), len(tensors))
