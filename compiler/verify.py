"""A plan against its model: every node whose value the captured graph also computes, and the logits on a text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import fx

from mixplan.compiler.frontends import open_checkpoint
from mixplan.compiler.replay import Replay, load_parameters
from mixplan.compiler.sample_text import sample_tokens
from mixplan.compiler.signal import compare
from mixplan.compiler.sources import SourceHashes
from mixplan.compiler.verify_report import Coverage, LogitReport, NodeReport, VerifyReport, default_limit, failures, source_warnings
from mixplan.runtime import load
from mixplan.runtime.errors import RequestError
from mixplan.runtime.model import Model

if TYPE_CHECKING:
    from torch import nn

__all__ = ["LogitReport", "NodeReport", "VerifyReport", "verify_plan"]

Floats = NDArray[np.float32]
_NODE_TOKENS = 32
# Why nodes of a plan are not compared.
_NO_ORIGIN = "made by fusion, without a counterpart"
_OTHER_SHAPE = "of another shape than their counterpart"
_NOT_RUN = "not computed in a step"


def verify_plan(
    plan: str | Path,
    model: str | Path | nn.Module,
    *,
    text: str | None = None,
    tokens: int = 256,
    max_diff: float | None = None,
    min_snr: float | None = None,
) -> VerifyReport:
    """Compare the plan with the model that it was compiled from, in float32 by torch, on the first `tokens` tokens of a text.

    Logits are as the plan's own devices compute them; nodes run on the reference device. max_diff limits the largest difference of a
    logit, relative to the largest logit (2e-4 for FP32 plans if not given), min_snr the SNR of every compared node, in dB; limits that are
    missed stand in the report's `failures`. A model of other files than the plan's is a warning, one of another vocabulary RequestError.
    Holds the model's weights in memory.
    """
    checkpoint = open_checkpoint(model)
    try:
        captured = checkpoint.capture()
        with SourceHashes(captured.source.files) as hashes:
            load_parameters(captured.graph, captured.weights)
            digests = hashes.result()
    finally:
        checkpoint.close()
    with load(plan) as running:
        record = running.plan
        if record.model.vocab_size != captured.model.vocab_size:
            raise RequestError(
                f"The plan has a vocabulary of {record.model.vocab_size}, the model one of {captured.model.vocab_size}.",
                hint=f"Give the checkpoint that the plan was compiled from: {record.provenance.source_name}.",
            )
        ids = sample_tokens(running, text, tokens)
        got = _logits(running, ids)
        placement = tuple(f"{place.region}: {place.device} ({place.isa})" for place in running.placement)
    wanted = Replay(captured.graph).step(ids, list(range(len(ids))), [0] * len(ids)).numpy()
    nodes, coverage = _nodes(plan, captured.graph, ids[:_NODE_TOKENS])
    logits = _compare_logits(got, wanted, ids)
    limit = default_limit(record) if max_diff is None else max_diff
    return VerifyReport(
        logits=logits,
        nodes=nodes,
        coverage=coverage,
        placement=placement,
        max_diff=limit,
        min_snr=min_snr,
        warnings=source_warnings(record, digests),
        failures=failures(logits, nodes, limit, min_snr),
    )


def _logits(running: Model, ids: Sequence[int]) -> Floats:
    parts = []
    for start in range(0, len(ids), running.max_step_tokens):
        chunk = ids[start : start + running.max_step_tokens]
        parts.append(running.step(chunk, list(range(start, start + len(chunk))), [0] * len(chunk), "all"))
    return np.concatenate(parts)


def _log_softmax(x: Floats) -> NDArray[np.float64]:
    wide = x.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    result: NDArray[np.float64] = wide - np.log(np.exp(wide).sum(-1, keepdims=True))
    return result


def _compare_logits(got: Floats, wanted: Floats, ids: Sequence[int]) -> LogitReport:
    difference = float(np.abs(got - wanted).max())
    plan, model = _log_softmax(got), _log_softmax(wanted)
    following = np.asarray(ids[1:])
    rows = np.arange(len(following))
    return LogitReport(
        tokens=len(ids),
        max_abs=difference,
        relative=difference / float(np.abs(wanted).max()),
        same_top=float((got.argmax(-1) == wanted.argmax(-1)).mean()),
        kl=float((np.exp(model) * (model - plan)).sum(-1).mean()),
        perplexity=float(np.exp(-plan[rows, following].mean())),
        model_perplexity=float(np.exp(-model[rows, following].mean())),
    )


class _Recorder(Replay):
    """A replay that keeps the results of some nodes, and counts those that are tensors."""

    def __init__(self, graph: fx.GraphModule, names: set[str]) -> None:
        super().__init__(graph)
        self.names = names
        self.seen: dict[str, NDArray[Any]] = {}
        self.tensors: set[str] = set()

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n.op == "call_function" and hasattr(result, "detach"):
            self.tensors.add(n.name)
            if n.name in self.names:
                self.seen[n.name] = result.detach().numpy().copy()
        return result


def _nodes(plan: str | Path, graph: fx.GraphModule, ids: Sequence[int]) -> tuple[tuple[NodeReport, ...], Coverage]:
    with load(plan, device="reference", verify="manifest") as running:
        ids = ids[: running.max_step_tokens]
        places, sequences = list(range(len(ids))), [0] * len(ids)
        nodes = running.plan.nodes
        recorder = _Recorder(graph, {node.origin for node in nodes if node.origin})
        recorder.step(ids, places, sequences)
        by_value = {running.plan.values[node.outputs[0]].name: node for node in nodes}
        reasons = {node.name: _NO_ORIGIN if node.origin not in recorder.seen else _NOT_RUN for node in nodes}
        reports: list[NodeReport] = []

        def tap(name: str, array: NDArray[Any]) -> None:
            node = by_value.get(name)
            if node is None or reasons.get(node.name) != _NOT_RUN:
                return
            wanted = recorder.seen[node.origin]
            if wanted.shape != array.shape:
                reasons[node.name] = _OTHER_SHAPE
                return
            del reasons[node.name]
            signal = compare(array, wanted)
            reports.append(NodeReport(node.name, node.op, node.origin, signal.max_abs, signal.snr))

        running.step(ids, places, sequences, "all", tap=tap)
    skipped = dict(sorted(Counter(reasons.values()).items()))
    fused = recorder.tensors - {node.origin for node in nodes}
    reports.sort(key=lambda report: report.snr)
    return tuple(reports), Coverage(len(reports), len(nodes), skipped, len(fused), len(recorder.tensors))
