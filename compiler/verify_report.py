"""What `mixplan verify PLAN MODEL` says, and the limits that it holds a plan to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

import numpy as np

from mixplan.runtime.kv_format import KvFormat
from mixplan.runtime.plan import Plan

__all__ = ["FP32_LIMIT", "MOVES", "Coverage", "LogitReport", "NodeReport", "VerifyReport", "default_limit", "failures", "source_warnings"]

FP32_LIMIT = 2e-4
"""Largest difference of a logit, relative to the largest logit, in FP32 plans: float32 sums in another order, through all layers."""
_ROWS = 10
MOVES = frozenset({"cat", "expand", "permute", "reshape", "slice"})
"""Ops that only move data: they repeat the figures of the node before them, so tables leave them out."""


@dataclass(frozen=True)
class NodeReport:
    """One node of the plan against the captured node that computes the same value.

    `snr` is in dB: infinite where they are equal, minus infinity where the plan's value is not finite and the model's is.
    """

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
class Coverage:
    """Which nodes could be compared. `skipped` counts the plan's other nodes by reason; `fused` of the model's `captured` nodes have no
    node of their own in the plan."""

    compared: int
    total: int
    skipped: Mapping[str, int]
    fused: int
    captured: int

    def __str__(self) -> str:
        """Two sentences."""
        others = ", ".join(f"{count} {reason}" for reason, count in self.skipped.items())
        return (
            f"{self.compared} of the plan's {self.total} nodes were compared{f'; the others: {others}' if others else ''}. "
            f"{self.fused} of the model's {self.captured} nodes were fused away: the plan has no node for their value alone."
        )


@dataclass(frozen=True)
class VerifyReport:
    """The comparison: nodes worst first, what does not fit (`warnings`) and what misses a limit (`failures`)."""

    logits: LogitReport
    nodes: tuple[NodeReport, ...]
    coverage: Coverage
    placement: tuple[str, ...]
    max_diff: float | None = None
    min_snr: float | None = None
    warnings: tuple[str, ...] = ()
    failures: tuple[str, ...] = field(default=())

    @property
    def passed(self) -> bool:
        """Whether every limit holds."""
        return not self.failures

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON can hold it: numbers that are not finite are null (the SNR of equal values, for one)."""
        return {**_finite(asdict(self)), "passed": self.passed}

    def render(self, table: Callable[..., Any]) -> list[Any]:
        """Rich tables, made by `table(title, *columns)`, and lines: the logits, the worst nodes, what was compared, what is wrong."""
        logits = table("Logits on the text", "figure", "value:r")
        for place in self.placement:
            logits.add_row("computed by", place)
        for name, value in asdict(self.logits).items():
            logits.add_row(name.replace("_", " "), f"{value:.6g}")
        computed = [node for node in self.nodes if node.op not in MOVES]
        title = f"\nNodes that compute, on the reference device: the worst {min(_ROWS, len(computed))} of {len(computed)}"
        worst = table(title, "node", "op", "max abs:r", "SNR dB:r")
        for node in computed[:_ROWS]:
            worst.add_row(node.node, node.op, f"{node.max_abs:.3g}", f"{node.snr:.1f}")
        lines = [f"\n{self._summary()}{self.coverage}", *(f"warning: {text}" for text in self.warnings)]
        return [logits, worst, *lines, *self._verdict()]

    def _summary(self) -> str:
        if not self.nodes:
            return ""
        values = [node.snr for node in self.nodes]
        return f"SNR: worst {values[0]:.1f} dB, median {median(values):.1f} dB. "

    def _verdict(self) -> list[str]:
        if self.failures:
            return [f"failed: {text}" for text in self.failures]
        limits = []
        if self.max_diff is not None:
            limits.append(f"relative difference of the logits at most {self.max_diff:g}")
        if self.min_snr is not None:
            limits.append(f"SNR of every node at least {self.min_snr:g} dB")
        return [f"passed: {' and '.join(limits)}"] if limits else ["no limit was set: see --max-diff and --min-snr"]


def default_limit(plan: Plan) -> float | None:
    """The limit on logits that holds without being asked for: that of plans whose weights and KV cache are all float32."""
    exact = all(decision.scheme == "FP32" for decision in plan.decisions)
    kept = all(held is KvFormat.f32 for layer in plan.attention for held, _ in layer.runs)
    return FP32_LIMIT if exact and kept else None


def failures(logits: LogitReport, nodes: Sequence[NodeReport], max_diff: float | None, min_snr: float | None) -> tuple[str, ...]:
    """Every limit that is missed, in words. Values that are not finite miss any."""
    found = []
    broken = [node.node for node in nodes if node.snr == -np.inf]
    if broken:
        found.append(f"{len(broken)} nodes give values that are not finite where the model's are: {', '.join(broken[:3])}")
    if not np.isfinite(logits.relative):
        found.append("the plan gives logits that are not finite")
    elif max_diff is not None and logits.relative > max_diff:
        found.append(f"the relative difference of the logits is {logits.relative:.3g}; allowed is {max_diff:g}")
    low = [node for node in nodes if min_snr is not None and node.snr < min_snr]
    if low:
        found.append(f"{len(low)} nodes have an SNR below {min_snr:g} dB; the lowest is {low[0].node} with {low[0].snr:.1f} dB")
    return tuple(found)


def source_warnings(plan: Plan, files: Mapping[str, str]) -> tuple[str, ...]:
    """How the model's files (SHA-256 by name) differ from those that the plan was compiled from."""
    recorded = plan.provenance.source_files
    if not recorded or not files:
        which = "The plan was compiled from" if not recorded else "MODEL is"
        return (f"{which} a module in memory, so nothing tells whether it is the model of this plan.",)
    known = set(files.values())
    # A file may have been renamed; its content counts.
    changed = [name for name, digest in recorded.items() if digest not in known and name in files]
    missing = [name for name, digest in recorded.items() if digest not in known and name not in files]
    parts = [f"{what}: {', '.join(names)}" for what, names in (("other content", changed), ("not there", missing)) if names]
    if not parts:
        return ()
    return (f"MODEL is not the checkpoint that the plan was compiled from ({plan.provenance.source_name}); {'; '.join(parts)}.",)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
