"""What a probe reports: plain records that JSON can hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from mixplan.passes.profiling import TensorStats

__all__ = ["Advice", "HeadRecord", "LayerRecord", "ProbeReport", "TensorRecord", "WorkRecord", "tensor_record"]

SCHEMA = 1
PERCENTILES = (1.0, 50.0, 90.0, 99.0, 99.9, 99.99)
# Values below this part of the root mean square count as near zero.
NEAR_ZERO = 0.01
_OUTLIERS_LISTED = 16


@dataclass(frozen=True)
class TensorRecord:
    """One tensor. The reference page of the probe defines every figure."""

    name: str
    kind: Literal["weight", "activation"]
    op: str
    count: int
    low: float
    high: float
    mean: float
    std: float
    rms: float
    skew: float
    kurtosis: float
    percentiles: Mapping[str, float]
    zero_fraction: float
    near_zero_fraction: float
    long_run_fraction: float
    longest_zero_run: int
    channels: int
    outlier_channels: tuple[int, ...]
    outlier_count: int
    channel_ratio: float
    dead_channels: int
    row_ratio: float
    nonfinite: int
    histogram: tuple[tuple[float, int, int], ...] = ()

    @property
    def absmax(self) -> float:
        """Largest magnitude."""
        return max(-self.low, self.high, 0.0)


@dataclass(frozen=True)
class WorkRecord:
    """FLOPs, bytes and their ratio in a step."""

    flops: int = 0
    bytes: int = 0

    @property
    def flops_per_byte(self) -> float:
        """Arithmetic intensity."""
        return self.flops / self.bytes if self.bytes else 0.0


@dataclass(frozen=True)
class LayerRecord:
    """A layer, or (kind "attention", "other") what has no weights: one attention, all nodes of one op. Shares are of the whole model."""

    name: str
    kind: Literal["linear", "experts", "embedding", "attention", "other"]
    aliases: tuple[str, ...]
    rows: int
    columns: int
    parameters: int
    stored: str
    input: str
    output: str
    decode: WorkRecord
    run: WorkRecord
    seconds: float
    measured_share: float
    modelled_share: float
    input_snr: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class HeadRecord:
    """One query head of one attention layer. span: the largest difference in a row of the softmax input, mean_span its mean over rows."""

    layer: int
    head: int
    kv_head: int
    q_absmax: float
    q_rms: float
    k_absmax: float
    k_rms: float
    v_absmax: float
    v_rms: float
    score_low: float
    score_high: float
    input_low: float
    input_high: float
    span: float
    mean_span: float


@dataclass(frozen=True)
class Advice:
    """One piece of advice: which layers, tensors or heads, what to do, and the figures that say so."""

    topic: str
    subjects: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class ProbeReport:
    """Everything."""

    model: str
    architecture: str
    parameters: int
    tokens: int
    windows: int
    window: int
    context: int
    seconds: Mapping[str, float]
    time_basis: str
    model_basis: str
    tensors: tuple[TensorRecord, ...]
    layers: tuple[LayerRecord, ...]
    heads: tuple[HeadRecord, ...]
    sensitivity: Mapping[str, Any]
    advice: tuple[Advice, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it: numbers that are not finite are null."""
        data = asdict(self)
        for record, layer in zip(data["layers"], self.layers, strict=True):
            for step in ("decode", "run"):
                record[step]["flops_per_byte"] = getattr(layer, step).flops_per_byte
        cleaned: dict[str, Any] = _finite({"schema": SCHEMA, **data})
        return cleaned


def tensor_record(name: str, kind: Literal["weight", "activation"], op: str, stats: TensorStats) -> TensorRecord:
    """The figures of gathered statistics."""
    moments, runs, channels = stats.moments, stats.runs, stats.channels
    sizes = stats.histogram
    outliers = channels.outliers() if channels is not None else []
    median = stats.row_sizes.percentile(50)
    return TensorRecord(
        name=name,
        kind=kind,
        op=op,
        count=moments.count,
        low=moments.low if moments.count else 0.0,
        high=moments.high if moments.count else 0.0,
        mean=moments.mean,
        std=moments.std,
        rms=moments.rms,
        skew=moments.skew,
        kurtosis=moments.kurtosis,
        percentiles={f"{percent:g}": min(sizes.percentile(percent), moments.absmax) for percent in PERCENTILES},
        zero_fraction=runs.zero_fraction,
        near_zero_fraction=max(sizes.fraction_below(NEAR_ZERO * moments.rms), runs.zero_fraction),
        long_run_fraction=runs.long_run_fraction,
        longest_zero_run=runs.longest,
        channels=0 if channels is None else int(channels.absmax.numel()),
        outlier_channels=tuple(outliers[:_OUTLIERS_LISTED]),
        outlier_count=len(outliers),
        channel_ratio=0.0 if channels is None else channels.ratio,
        dead_channels=0 if channels is None else channels.dead,
        row_ratio=moments.absmax / median if median > 0 else 0.0,
        nonfinite=stats.nonfinite,
        histogram=tuple(sizes.coarse()),
    )


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
