"""What `mixplan eval` says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

from mixplan.runtime.evaluation.measure import Measured, Perplexity
from mixplan.runtime.placement import Placement

__all__ = ["Evaluation", "finite"]


@dataclass(frozen=True)
class Evaluation:
    """Figures of a plan on a text, alone or against the original, and where it ran."""

    plan: str
    effective_bits: float
    placement: tuple[Placement, ...]
    figures: Perplexity | Measured
    against: str = ""
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON can hold it: numbers that are not finite are null."""
        placement = [{"region": p.region, "device": p.device, "isa": p.isa} for p in self.placement]
        head = {"plan": self.plan, "effective_bits": self.effective_bits, "against": self.against or None, "warnings": list(self.warnings)}
        data: dict[str, Any] = finite({**head, "placement": placement, **asdict(self.figures)})
        return data

    def render(self, table: Callable[..., Any]) -> list[Any]:
        """Rich tables, made by `table(title, *columns)`: the figures, and their course along the window."""
        figures = table(self.plan, "figure", "value:r", "±:r")
        for place in self.placement:
            figures.add_row("computed by", f"{place.device} ({place.isa})", "")
        figures.add_row("effective bits", f"{self.effective_bits:.4f}", "")
        figures.add_row("windows", f"{self.figures.windows} of {self.figures.context} tokens", "")
        for name, value, error in _rows(self.figures):
            figures.add_row(name, value, error if error and isfinite(float(error.rstrip("%"))) else "")
        if isinstance(self.figures, Measured):
            curve, title, first = self.figures.positions, "KLD by position in the window", 0
        else:
            curve, title, first = self.figures.position_loss, "Loss by position of the predicted token, nats", 1
        positions = table(f"\n{title}", "positions", "mean:r")
        for start, stop in _octaves(len(curve)):
            span = f"{start + first}" if stop == start + 1 else f"{start + first} to {stop - 1 + first}"
            positions.add_row(span, f"{sum(curve[start:stop]) / (stop - start):.6g}")
        return [figures, positions]


def _rows(figures: Perplexity | Measured) -> Iterator[tuple[str, str, str]]:
    if isinstance(figures, Perplexity):
        yield "perplexity", f"{figures.perplexity:.4f}", f"{figures.perplexity_error:.2g}"
        return
    yield "perplexity", f"{figures.perplexity:.4f}", ""
    yield "perplexity of the original", f"{figures.reference_perplexity:.4f}", ""
    yield "loss of perplexity", f"{figures.loss:.3%}", f"{figures.loss_error:.2%}"
    yield "KLD, mean", f"{figures.kld_mean:.6g}", f"{figures.kld_error:.2g}"
    yield "KLD, median", f"{figures.kld_median:.6g}", ""
    yield "KLD, 99th percentile", f"{figures.kld_p99:.6g}", ""
    yield "same most probable token", f"{figures.same_top:.3%}", ""


def _octaves(count: int) -> Iterator[tuple[int, int]]:
    """0, 1, 2 to 3, 4 to 7, ... as [start, stop)."""
    start, stop = 0, 1
    while start < count:
        yield start, min(stop, count)
        start, stop = stop, 2 * stop


def finite(value: Any) -> Any:
    """`value` as JSON can hold it: numbers that are not finite are None, tuples are lists."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, Sequence) and not isinstance(value, str) else value
