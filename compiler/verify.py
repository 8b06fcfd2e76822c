"""A plan against its model: every node whose value the captured graph also computes, and the logits on a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import fx

from mixplan.compiler.frontends import open_checkpoint
from mixplan.compiler.replay import Replay, load_parameters
from mixplan.runtime import load
from mixplan.runtime.errors import RequestError
from mixplan.runtime.model import Model

if TYPE_CHECKING:
    from torch import nn

__all__ = ["LogitReport", "NodeReport", "VerifyReport", "verify_plan"]

Floats = NDArray[np.float32]
_NODE_TOKENS = 32
_TEXT = (
    "The lighthouse keeper wrote down the weather every evening: wind from the north-west, a falling barometer, rain before "
    "midnight. In 1893 the log ran to 365 pages, and not one of them was blank. When the ships stopped coming, he kept writing, "
    "because a record with a gap in it, he said, is only half a record. Years later a student counted the entries, plotted them on "
    "a chart, and found that the storms had moved eleven days earlier in the year. def mean(values): return sum(values) / "
    "len(values). The keeper had no word for that, but he had the numbers, and the numbers were enough."
)


@dataclass(frozen=True)
class NodeReport:
    """One node of the plan against the captured node that computes the same value. `snr` is in dB, infinite where they are equal."""

    node: str
    op: str
    origin: str
    max_abs: float
    snr: float


@dataclass(frozen=True)
class LogitReport:
    """Logits over a text. `kl` is the mean Kullback-Leibler divergence of the plan's distribution from the model's, in nats."""

    tokens: int
    max_abs: float
    relative: float
    same_top: float
    kl: float
    perplexity: float
    model_perplexity: float


@dataclass(frozen=True)
class VerifyReport:
    """What `mixplan verify PLAN MODEL` says. `compared` nodes of `total` have a counterpart of equal shape."""

    logits: LogitReport
    nodes: tuple[NodeReport, ...]
    compared: int
    total: int
    placement: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON can hold it (an infinite SNR is null)."""
        data = asdict(self)
        for node in data["nodes"]:
            node["snr"] = node["snr"] if np.isfinite(node["snr"]) else None
        return data

    def render(self, table: Callable[..., Any]) -> list[Any]:
        """Rich tables, made by `table(title, *columns)`: the logits, and the twenty worst nodes."""
        logits = table("Logits on the text", "figure", "value:r")
        for name, value in asdict(self.logits).items():
            logits.add_row(name.replace("_", " "), f"{value:.6g}")
        worst = table(f"\nNodes: {self.compared} of {self.total} compared, worst first", "node", "op", "max abs:r", "SNR dB:r")
        for node in sorted(self.nodes, key=lambda n: n.snr)[:20]:
            worst.add_row(node.node, node.op, f"{node.max_abs:.3g}", f"{node.snr:.1f}")
        return [logits, worst]


def verify_plan(plan: str | Path, model: str | Path | nn.Module, *, text: str | None = None, tokens: int = 256) -> VerifyReport:
    """Compare the plan with the model that it was compiled from, in float32 by torch, on the first `tokens` tokens of a text.

    Nodes run on the reference device, logits as the plan's own devices compute them. Holds the model's weights in memory.
    """
    checkpoint = open_checkpoint(model)
    try:
        captured = checkpoint.capture()
        load_parameters(captured.graph, captured.weights)
    finally:
        checkpoint.close()
    with load(plan) as running:
        ids = _token_ids(running, text, tokens)
        logits = _logits(running, ids)
        placement = tuple(f"{place.region}: {place.device} ({place.isa})" for place in running.placement)
    wanted = Replay(captured.graph).step(ids, list(range(len(ids))), [0] * len(ids)).numpy()
    nodes, compared, total = _nodes(plan, captured.graph, ids[:_NODE_TOKENS])
    return VerifyReport(_compare_logits(logits, wanted, ids), nodes, compared, total, placement)


def _token_ids(running: Model, text: str | None, tokens: int) -> list[int]:
    limit = min(tokens, running.plan.model.context_length)
    if "tokenizer.json" in running.plan.files:
        ids = running.tokenizer.encode(text or _TEXT)[:limit]
    elif text is None:
        ids = np.random.default_rng(0).integers(0, running.plan.model.vocab_size, limit).tolist()
    else:
        raise RequestError("The plan has no tokenizer, so a text cannot be used.", hint="Leave the text out, for random tokens.")
    if len(ids) < 2:
        raise RequestError(f"The text has {len(ids)} tokens; at least 2 are needed.")
    return [int(i) for i in ids]


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
    """A replay that keeps the results of some nodes."""

    def __init__(self, graph: fx.GraphModule, names: set[str]) -> None:
        super().__init__(graph)
        self.names = names
        self.seen: dict[str, NDArray[Any]] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n.name in self.names and hasattr(result, "detach"):
            self.seen[n.name] = result.detach().numpy().copy()
        return result


def _nodes(plan: str | Path, graph: fx.GraphModule, ids: Sequence[int]) -> tuple[tuple[NodeReport, ...], int, int]:
    with load(plan, device="reference", verify="manifest") as running:
        ids = ids[: running.max_step_tokens]
        places, sequences = list(range(len(ids))), [0] * len(ids)
        nodes = running.plan.nodes
        recorder = _Recorder(graph, {node.origin for node in nodes if node.origin})
        recorder.step(ids, places, sequences)
        wanted = {running.plan.values[node.outputs[0]].name: node for node in nodes if node.origin in recorder.seen}
        reports: dict[str, NodeReport] = {}

        def tap(name: str, array: NDArray[Any]) -> None:
            node = wanted.get(name)
            if node is None or recorder.seen[node.origin].shape != array.shape:
                return
            reports[name] = _compare(node.name, node.op, node.origin, array, recorder.seen[node.origin])

        running.step(ids, places, sequences, "all", tap=tap)
    return tuple(reports.values()), len(reports), len(nodes)


def _compare(name: str, op: str, origin: str, got: NDArray[Any], wanted: NDArray[Any]) -> NodeReport:
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    # Masked elements are infinite on both sides.
    finite = np.isfinite(b)
    noise, signal = np.where(finite, a - b, 0.0), np.where(finite, b, 0.0)
    power = float(np.square(noise).sum())
    snr = float("inf") if power == 0 else 10 * float(np.log10(max(float(np.square(signal).sum()), 1e-300) / power))
    return NodeReport(name, op, origin, float(np.abs(noise).max(initial=0.0)), snr)
