"""What `mixplan debug` says: spans by blame."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

from mixplan.compiler.debug.spans import Span
from mixplan.compiler.verify_report import Coverage
from mixplan.runtime.evaluation.report import finite

__all__ = ["DebugReport", "Figures", "SpanReport", "blame_order"]

_ROWS = 20
# How far the divergence of the plan's own devices may be from that of the reference device, before it is worth a word.
_FACTOR, _LEAST = 0.25, 1e-4


@dataclass(frozen=True)
class Figures:
    """snr in dB and cosine of the span's value beside the original's. kld: mean divergence of the original's logits where it is given that
    value, nats; None where it was not computed."""

    snr: float
    cosine: float
    kld: float | None


@dataclass(frozen=True)
class SpanReport:
    """A span on the original's inputs (isolated: its own doing), and in the plan as it is (cumulative: with all before it)."""

    span: Span
    isolated: Figures
    cumulative: Figures

    def to_dict(self) -> dict[str, Any]:
        """Flat, as JSON holds it."""
        return {**asdict(self.span), "isolated": asdict(self.isolated), "cumulative": asdict(self.cumulative)}


@dataclass(frozen=True)
class DebugReport:
    """spans: those to blame first. kld_reference and kld_devices: divergence of the plan's logits, nats, mean over the tokens, as the
    reference device computes them and as the plan's own devices do."""

    tokens: int
    spans: tuple[SpanReport, ...]
    coverage: Coverage
    kld_reference: float
    kld_devices: float
    placement: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON can hold it: numbers that are not finite are null."""
        data: dict[str, Any] = finite({**asdict(self), "spans": [row.to_dict() for row in self.spans]})
        return data

    def render(self, table: Callable[..., Any]) -> list[Any]:
        """Rich tables, made by `table(title, *columns)`, and lines."""
        logits = table(f"Logits of {self.tokens} tokens", "computed by", "KLD:r")
        logits.add_row("the reference device", f"{self.kld_reference:.4g}")
        for place in self.placement:
            logits.add_row(place, f"{self.kld_devices:.4g}")
        title = f"\nSpans, those to blame first: {min(_ROWS, len(self.spans))} of {len(self.spans)}"
        figures = ("SNR dB:r", "cosine:r", "KLD:r")
        spans = table(title, "layers", "scheme", "last op", *(f"alone {name}" for name in figures), *(f"so far {name}" for name in figures))
        for row in self.spans[:_ROWS]:
            cells = [cell for part in (row.isolated, row.cumulative) for cell in _cells(part)]
            spans.add_row(row.span.title, " ".join(row.span.schemes), row.span.ops[-1], *cells)
        return [logits, spans, f"\n{self._verdict()}{self._devices()}{self.coverage}", *(f"warning: {text}" for text in self.warnings)]

    def _verdict(self) -> str:
        worst = self.spans[0] if self.spans else None
        if worst is None or not worst.isolated.kld:
            return ""
        total = sum(row.isolated.kld or 0.0 for row in self.spans)
        share = f", with {worst.isolated.kld / total:.0%} of what the spans cost alone" if isfinite(total) else ""
        return f"Most to blame: {worst.span.title}{share}. "

    def _devices(self) -> str:
        if abs(self.kld_devices - self.kld_reference) <= _FACTOR * self.kld_reference + _LEAST:
            return ""
        return "The plan's own devices diverge otherwise than the reference device: look at their kernels, not at the formats. "


def blame_order(row: SpanReport) -> tuple[int, float, float]:
    """The largest divergence first, then spans whose divergence was not computed, the lowest SNR first, then exact ones."""
    kld = row.isolated.kld
    return 1 if kld is None else 2 if kld == 0 else 0, -(kld or 0.0), row.isolated.snr


def _cells(figures: Figures) -> tuple[str, str, str]:
    return f"{figures.snr:.1f}", f"{figures.cosine:.6f}", "" if figures.kld is None else f"{figures.kld:.3g}"
