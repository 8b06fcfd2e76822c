"""report.html: the receipt for people, in one file that needs no other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from mixplan.compiler.search.curve import UNIFORM
from mixplan.compiler.search.failure import figure_text
from mixplan.compiler.search.plots import Plot, Series, draw
from mixplan.compiler.search.promise import MEASURES, Promise
from mixplan.passes.precision.schemes import parse_scheme
from mixplan.runtime.plan import Plan
from mixplan.runtime.receipt import CurvePoint, LayerChoice, Receipt

if TYPE_CHECKING:
    from jinja2 import Template

__all__ = ["render_report"]

_TITLES = {
    "bits": "effective bits, all tensors",
    "size": "size of the plan's directory",
    "loss": "loss of perplexity",
    "kld": "mean KL divergence",
    "latency": "time of a decode step",
}


def render_report(plan: Plan, receipt: Receipt, promise: Promise) -> bytes:
    """UTF-8 HTML. Equal receipts give equal bytes."""
    text = _template().render(
        plan=plan,
        receipt=receipt,
        promises=_promises(plan, receipt, promise),
        plots=_plots(receipt, promise),
        schemes=_schemes(plan),
        solver=receipt.solver,
        layers=[_layer(choice) for choice in receipt.layers],
        attention=[_choice(choice) for choice in receipt.attention],
        work=f"batch {promise.batch}, context {promise.context}",
        timed="latency" in promise.limits,
    )
    return text.encode("utf-8")


@cache
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(undefined=StrictUndefined, autoescape=True, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    environment.filters["figure"] = lambda value: f"{value:.4g}"
    source = resources.files("mixplan.compiler.search").joinpath("templates/report.html.j2").read_text(encoding="utf-8")
    return environment.from_string(source)


def _promises(plan: Plan, receipt: Receipt, promise: Promise) -> list[dict[str, str]]:
    """A row for each figure, promised or not."""
    measured = receipt.measured
    known = {"bits": plan.effective_bits, "loss": measured.get("loss"), "kld": measured.get("kld_mean")}
    errors = {"loss": measured.get("loss_error"), "kld": measured.get("kld_error")}
    rows = []
    for name in MEASURES:
        value = receipt.achieved.get(name, known.get(name))
        if value is None:
            continue
        promised = name in promise.limits
        raw = known.get(name) if name in errors else value
        assert raw is not None
        error = errors.get(name)
        rows.append(
            {
                "what": _TITLES[name],
                "asked": figure_text(name, promise.limits[name]) if promised else "",
                "got": figure_text(name, float(raw)) + (f" ± {figure_text(name, error)}" if error is not None else ""),
                "share": f"{float(value) / promise.limits[name]:.1%}" if promised else "",
            }
        )
    return rows


def _plots(receipt: Receipt, promise: Promise) -> list[dict[str, str]]:
    seconds = f"milliseconds of a decode step, predicted ({'this machine' if 'latency' in promise.limits else 'nominal machine'})"
    bits = _plot(receipt.curve, "Loss against effective bits", "effective bits", "bits", lambda point: point.bits)
    latency = _plot(receipt.curve, "Loss against latency", seconds, "latency", lambda point: (point.seconds or 0.0) * 1e3)
    return [{"title": plot.title, "svg": draw(plot)} for plot in (bits, latency)]


def _plot(curve: Sequence[CurvePoint], title: str, axis: str, kind: str, across: Any) -> Plot:
    def points(wanted: str) -> tuple[tuple[float, float, str], ...]:
        return tuple((across(point), point.loss, "") for point in curve if point.kind == wanted)

    def uniform() -> tuple[tuple[float, float, str], ...]:
        found = [point for point in curve if point.kind.startswith(f"{UNIFORM} ")]
        return tuple((across(point), point.loss, point.kind.partition(" ")[2]) for point in found)

    def named(wanted: str, label: str) -> tuple[tuple[float, float, str], ...]:
        return tuple((x, y, label) for x, y, _ in points(wanted))

    return Plot(
        title,
        axis,
        "mean KL divergence, nats",
        (
            Series("the best mixes, predicted", "curve", points(kind), line=True),
            Series("one scheme everywhere, predicted", "uniform", uniform()),
            Series("this plan, predicted", "chosen", points("chosen")),
            Series("this plan, measured", "measured", named("measured", "this plan")),
        ),
    )


def _schemes(plan: Plan) -> list[dict[str, Any]]:
    """What the plan holds, by scheme."""
    counts: dict[str, tuple[int, int, float]] = {}
    for decision in plan.decisions:
        layers, parameters, bits = counts.get(decision.scheme, (0, 0, 0.0))
        counts[decision.scheme] = (layers + 1, parameters + decision.parameters, bits + decision.bits * decision.parameters)
    total = sum(parameters for _, parameters, _ in counts.values()) or 1
    rows = [
        {"scheme": scheme, "layers": layers, "share": parameters / total, "bits": bits / max(parameters, 1)}
        for scheme, (layers, parameters, bits) in counts.items()
    ]
    return sorted(rows, key=lambda row: (row["bits"], row["scheme"]))


def _choice(choice: LayerChoice) -> dict[str, Any]:
    chosen = next(one for one in choice.candidates if one.scheme == choice.chosen)
    return {
        "name": choice.layer,
        "scheme": choice.chosen,
        "bits": chosen.bits,
        "loss": chosen.predicted_loss,
        "reason": choice.reason,
        "candidates": choice.candidates,
    }


def _layer(choice: LayerChoice) -> dict[str, Any]:
    return {
        **_choice(choice),
        "width": min(parse_scheme(choice.chosen).weight.bits, 16),
    }
