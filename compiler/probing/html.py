"""The report as one HTML file: no script, no font, no image from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import jinja2

from mixplan.compiler.probing.plots import bars, heat_map, histogram, spark
from mixplan.compiler.probing.record import LayerRecord, ProbeReport, TensorRecord

__all__ = ["report_html"]

_TEMPLATES = Path(__file__).parent / "templates"
_BARS, _NOTABLE = 20, 12
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$| )")


def report_html(report: ProbeReport) -> str:
    """The page. Texts from the model are escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(num=_number, percent=lambda value: f"{value:.1%}", spark=lambda t: spark(t.histogram))
    template = environment.get_template("report.html.j2")
    activations = [tensor for tensor in report.tensors if tensor.kind == "activation"]
    return template.render(
        report=report,
        activations=activations,
        weights=[tensor for tensor in report.tensors if tensor.kind == "weight"],
        layers=[layer for layer in report.layers if layer.kind != "other"],
        maps=_maps(report, activations),
        head_maps=_head_maps(report),
        notable=[(tensor, histogram(tensor.histogram, _marks(tensor))) for tensor in _notable(activations)],
        sensitivity=_sensitivity_bars(report),
        time=_time_bars(report.layers),
    )


def _number(value: float | int | None) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _place(name: str) -> tuple[str, str]:
    """What a layer is, and which of its kind: self_attn.q_proj and 3 for model.layers.3.self_attn.q_proj, lm_head and "" for lm_head."""
    found = _NUMBER.search(name)
    if found is None:
        return name, ""
    return name[found.end() :].lstrip(". ") or name[: found.start()].rstrip("."), found[0]


def _grid(items: Iterable[tuple[str, float]], *, log: bool = False, unit: str = "") -> Any:
    """A heat map of named values: a row for each kind of layer, a column for each number, one for those without."""
    values = {_place(name): value for name, value in items}
    rows = list(dict.fromkeys(kind for kind, _ in values))
    numbers = sorted({number for _, number in values if number}, key=int)
    columns = ([""] if any(not number for _, number in values) else []) + numbers
    return heat_map(rows, columns, {(kind, number): value for (kind, number), value in values.items()}, log=log, unit=unit)


def _maps(report: ProbeReport, activations: Sequence[TensorRecord]) -> list[tuple[str, Any]]:
    layers = [layer for layer in report.layers if layer.parameters]
    rows: list[tuple[str, Any]] = []
    loss, schemes = report.sensitivity["loss"], report.sensitivity["schemes"]
    if schemes:
        bits: dict[str, float] = next(iter(report.sensitivity["bits"].values()), {})
        scheme = min(schemes, key=lambda name: (abs(bits.get(name, 0.0) - 4.5), name))
        rows.append((f"Loss in {scheme}", _grid([(name, row[scheme]) for name, row in loss.items()], log=True)))
    rows.append(("Largest magnitude of what is computed", _grid([(t.name, t.absmax) for t in activations], log=True)))
    rows.append(("Standard deviation of what is computed", _grid([(t.name, t.std) for t in activations], log=True)))
    rows.append(("Kurtosis of what is computed", _grid([(t.name, max(t.kurtosis, 0.01)) for t in activations], log=True)))
    rows.append(("Largest channel over the median channel", _grid([(t.name, t.channel_ratio) for t in activations], log=True)))
    for kind, words in (("token", "each token"), ("group", "each group of 32")):
        snr = [(layer.name, layer.input_snr[kind]) for layer in layers if kind in layer.input_snr]
        rows.append((f"Input in int8 with a scale for {words}: signal to noise, dB", _grid(snr, unit="dB")))
    rows.append(("Share of a decode step, as modelled", _grid([(x.name, x.modelled_share) for x in layers], log=True)))
    return [(title, drawn) for title, drawn in rows if drawn]


def _head_maps(report: ProbeReport) -> list[tuple[str, Any]]:
    figures: tuple[tuple[str, Callable[[Any], float], bool], ...] = (
        ("Widest row of the softmax input", lambda head: head.span, False),
        ("Largest |Q|", lambda head: head.q_absmax, True),
        ("Largest |K|", lambda head: head.k_absmax, True),
        ("Largest |V|", lambda head: head.v_absmax, True),
    )
    heads = list(dict.fromkeys(head.head for head in report.heads))
    layers = [str(layer) for layer in dict.fromkeys(head.layer for head in report.heads)]
    maps = []
    for title, figure, log in figures:
        values = {(f"head {head.head}", str(head.layer)): figure(head) for head in report.heads}
        maps.append((title, heat_map([f"head {head}" for head in heads], layers, values, log=log)))
    return [(title, drawn) for title, drawn in maps if drawn]


def _notable(activations: Sequence[TensorRecord]) -> list[TensorRecord]:
    """The tensors with the widest channels, the heaviest tails and the most zeros."""
    keys: tuple[Callable[[TensorRecord], float], ...] = (lambda t: t.channel_ratio, lambda t: t.kurtosis, lambda t: t.zero_fraction)
    found: dict[str, TensorRecord] = {}
    for key in keys:
        for tensor in sorted(activations, key=key, reverse=True)[: _NOTABLE // len(keys)]:
            found.setdefault(tensor.name, tensor)
    return list(found.values())


def _marks(tensor: TensorRecord) -> dict[str, float]:
    return {
        f"{percent}% are at most {value:.4g}": value for percent, value in tensor.percentiles.items() if percent in ("50", "99", "99.9")
    }


def _sensitivity_bars(report: ProbeReport) -> list[tuple[str, Any]]:
    loss = report.sensitivity["loss"]
    charts = []
    for scheme in report.sensitivity["schemes"]:
        order = sorted(((name, row[scheme]) for name, row in loss.items()), key=lambda item: -item[1])
        charts.append((scheme, bars(order[:_BARS])))
    return charts


def _time_bars(layers: Sequence[LayerRecord]) -> list[tuple[str, Any]]:
    charts = []
    for title in ("measured", "modelled"):
        order = sorted(((layer.name, 100 * float(getattr(layer, f"{title}_share"))) for layer in layers), key=lambda item: -item[1])
        charts.append((title, bars(order[:_BARS], unit="%")))
    return charts
