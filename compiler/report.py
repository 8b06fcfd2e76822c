"""What a compile says about itself: formats and bits, sizes, times, matches, placement, and every "no"."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixplan.passes.precision.schemes import parse_scheme
from mixplan.runtime.plan import Decision

if TYPE_CHECKING:
    from mixplan.compiler.search.summary import PromiseSummary

__all__ = ["CompileReport", "RegionSummary", "SchemeSummary", "summarize_schemes"]


@dataclass(frozen=True)
class SchemeSummary:
    """One scheme over all layers that were asked for it. Bits are per weight, scales and zero points counted in.

    requested_bits is what the scheme costs where it applies in full, bits what these layers are stored with.
    """

    scheme: str
    layers: int
    parameters: int
    requested_bits: float
    bits: float


@dataclass(frozen=True)
class RegionSummary:
    """One region: where it runs, how large it is, and why it is not on the preferred target ("" if it is)."""

    name: str
    device: str
    nodes: int
    kernels: dict[str, int]
    reason: str = ""


@dataclass
class CompileReport:
    """`requested_bits` is what the requested schemes would give over all layers; `effective_bits` counts everything that is stored.

    `seconds` are by stage; the stages named in `parallel` ran beside others, so that the sum is more than the whole took.
    """

    output: Path
    digest: str
    name: str
    parameters: int
    weight_bytes: int
    plan_bytes: int
    requested_bits: float
    effective_bits: float
    schemes: list[SchemeSummary]
    regions: list[RegionSummary]
    refused: list[tuple[str, str, str]] = field(default_factory=list)
    matches: dict[str, int] = field(default_factory=dict)
    rejections: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    parallel: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    promise: PromiseSummary | None = None

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON can hold it."""
        return {**asdict(self), "output": str(self.output)}

    def render(self, table: Callable[..., Any]) -> list[Any]:
        """Rich tables, made by `table(title, *columns)`."""
        facts = table(f"{self.name} -> {self.output}", "fact", "value")
        facts.add_row("parameters", f"{self.parameters:,}")
        facts.add_row("effective bits, requested", f"{self.requested_bits:.3f}")
        facts.add_row("effective bits, achieved", f"{self.effective_bits:.3f}")
        facts.add_row("weights", f"{self.weight_bytes / 1e6:,.1f} MB")
        facts.add_row("plan", f"{self.plan_bytes / 1e6:,.1f} MB")
        facts.add_row("time", ", ".join(map(self._stage, self.seconds)))
        facts.add_row("rewrites", ", ".join(f"{name} {count}" for name, count in self.matches.items()) or "none")
        facts.add_row("rejections", f"{len(self.rejections)} (see `mixplan inspect --json`)" if self.rejections else "none")
        schemes = table("\nSchemes", "scheme", "layers:r", "parameters:r", "bits requested:r", "achieved:r")
        for row in self.schemes:
            schemes.add_row(row.scheme, str(row.layers), f"{row.parameters:,}", f"{row.requested_bits:.3f}", f"{row.bits:.3f}")
        placement = table("\nPlacement", "region", "device", "nodes:r", "kernels", "reason")
        for region in self.regions:
            kernels = " ".join(f"{level} ({size // 1024} kB)" for level, size in region.kernels.items())
            placement.add_row(region.name, region.device, str(region.nodes), kernels, region.reason)
        promise = [] if self.promise is None else self.promise.render(table)
        return [facts, *promise, schemes, placement, *self._warnings()]

    def _stage(self, stage: str) -> str:
        return f"{stage} {self.seconds[stage]:.1f} s{' (in parallel)' if stage in self.parallel else ''}"

    def _warnings(self) -> list[str]:
        return ["\nWarnings", *(f"warning: {text}" for text in self.warnings)] if self.warnings else []


def summarize_schemes(decisions: tuple[Decision, ...]) -> list[SchemeSummary]:
    """Layers, parameters and bits for each requested scheme, in order of first appearance."""
    groups: dict[str, list[Decision]] = {}
    for decision in decisions:
        groups.setdefault(decision.requested, []).append(decision)
    out = []
    for scheme, members in groups.items():
        parameters = sum(d.parameters for d in members)
        as_asked = [d for d in members if d.scheme == scheme]
        asked = sum(d.parameters for d in as_asked)
        # A layer that got its scheme shows what the scheme costs; where none did, the format's own figure stands.
        nominal = sum(d.bits * d.parameters for d in as_asked) / asked if asked else float(parse_scheme(scheme).weight.bits)
        achieved = sum(d.bits * d.parameters for d in members) / max(parameters, 1)
        out.append(SchemeSummary(scheme, len(members), parameters, nominal, achieved))
    return out
