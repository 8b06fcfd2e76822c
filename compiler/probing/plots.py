"""Plots as inline SVG: heat maps, histograms, bars. Colours that carry meaning are fixed; text and lines take the page's.

Every text that goes into markup is escaped here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup, escape

__all__ = ["bars", "heat_map", "histogram", "spark"]

# Dark blue to yellow, readable on light and dark pages and without telling red from green.
_STOPS = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
_CELL, _LEFT, _TOP = 17, 190, 22


def heat_map(
    rows: Sequence[str], columns: Sequence[str], values: Mapping[tuple[str, str], float], *, log: bool = False, unit: str = ""
) -> Markup:
    """A cell for each (row, column) that has a value, its colour from the least to the largest; the figure stands in the cell's tooltip."""
    known = {key: value for key, value in values.items() if math.isfinite(value) and (not log or value > 0)}
    if not known:
        return Markup("")
    scaled = {key: math.log10(value) if log else value for key, value in known.items()}
    low, high = min(scaled.values()), max(scaled.values())
    width, height = _LEFT + _CELL * len(columns) + 130, _TOP + _CELL * len(rows) + 6
    parts = [_open(width, height)]
    for x, column in enumerate(columns):
        if len(column) <= 3 and (len(columns) <= 32 or x % 4 == 0):
            parts.append(_text(_LEFT + _CELL * (x + 0.5), _TOP - 7, column, "middle"))
    for y, row in enumerate(rows):
        parts.append(_text(_LEFT - 6, _TOP + _CELL * (y + 0.7), row, "end"))
        for x, column in enumerate(columns):
            if (row, column) in scaled:
                part = (scaled[row, column] - low) / (high - low) if high > low else 0.5
                where = f'x="{_LEFT + _CELL * x}" y="{_TOP + _CELL * y}" width="{_CELL - 1}" height="{_CELL - 1}"'
                tip = escape(f"{column} {row}: {known[row, column]:.4g} {unit}".strip())
                parts.append(f'<rect {where} fill="{_colour(part)}"><title>{tip}</title></rect>')
    parts.append(_legend(_LEFT + _CELL * len(columns) + 12, min(known.values()), max(known.values()), log))
    return Markup("".join(parts) + "</svg>")


def histogram(buckets: Sequence[tuple[float, int, int]], marks: Mapping[str, float]) -> Markup:
    """Counts by log2 of the magnitude, negative values below the line and the others above it; `marks` are magnitudes with names."""
    if not buckets:
        return Markup("")
    width, height, middle = 430, 120, 54
    first, last = math.log2(buckets[0][0]), math.log2(buckets[-1][0]) + 0.5
    scale = (width - 16) / max(last - first, 0.5)
    most = max(max(negative, positive) for _, negative, positive in buckets)
    parts = [_open(width, height)]
    for edge, negative, positive in buckets:
        x, wide = 8 + (math.log2(edge) - first) * scale, max(scale * 0.5 - 0.5, 0.5)
        up, down = (44 * count / most for count in (positive, negative))
        tip = f"<title>{edge:.3g} to {edge * math.sqrt(2):.3g}: {positive:,} above 0, {negative:,} below</title>"
        parts.append(f'<rect class="above" x="{x:.1f}" y="{middle - up:.1f}" width="{wide:.1f}" height="{up:.1f}">{tip}</rect>')
        parts.append(f'<rect class="below" x="{x:.1f}" y="{middle:.1f}" width="{wide:.1f}" height="{down:.1f}">{tip}</rect>')
    step = max(round((last - first) / 6), 1)
    parts.extend(_text(8 + (at - first) * scale, height - 4, f"2^{at}", "middle") for at in range(math.ceil(first), int(last) + 1, step))
    for name, value in marks.items():
        if value > 0 and first <= math.log2(value) <= last + 0.5:
            x = 8 + (math.log2(value) - first) * scale
            parts.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="4" y2="{height - 18}"><title>{escape(name)}</title></line>')
    return Markup("".join(parts) + "</svg>")


def spark(buckets: Sequence[tuple[float, int, int]]) -> Markup:
    """The same in a table's cell: one outline, both signs together."""
    if not buckets:
        return Markup("")
    total = [negative + positive for _, negative, positive in buckets]
    most, step = max(total), 88 / len(total)
    points = " ".join(
        f"{i * step:.0f},{18 - 16 * count / most:.0f} {(i + 1) * step:.0f},{18 - 16 * count / most:.0f}" for i, count in enumerate(total)
    )
    return Markup(f'<svg class="spark" width="90" height="20"><polygon points="0,18 {points} 88,18"/></svg>')


def bars(items: Sequence[tuple[str, float]], *, unit: str = "", log: bool = False) -> Markup:
    """Horizontal bars with their names and figures, from 0, or (log) from a tenth of the least."""
    known = [(name, value) for name, value in items if math.isfinite(value) and value > 0]
    if not known:
        return Markup("")
    left, wide, row = 300, 330, 18
    most = max(value for _, value in known)
    least = min(value for _, value in known) / 10
    parts = [_open(left + wide + 110, row * len(known) + 6)]
    for y, (name, value) in enumerate(known):
        part = math.log(value / least) / math.log(most / least) if log else value / most
        parts.append(_text(left - 6, row * y + 13, name, "end"))
        parts.append(f'<rect class="bar" x="{left}" y="{row * y + 3}" width="{max(wide * part, 1):.1f}" height="{row - 5}"/>')
        parts.append(_text(left + wide * part + 6, row * y + 13, f"{value:.3g}{unit}", "start"))
    return Markup("".join(parts) + "</svg>")


def _open(width: float, height: float) -> str:
    return f'<svg viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}" role="img">'


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _colour(part: float) -> str:
    at = min(max(part, 0.0), 1.0) * (len(_STOPS) - 1)
    i = min(int(at), len(_STOPS) - 2)
    mixed = (round(a + (b - a) * (at - i)) for a, b in zip(_STOPS[i], _STOPS[i + 1], strict=True))
    return "#" + "".join(f"{value:02x}" for value in mixed)


def _legend(x: float, low: float, high: float, log: bool) -> str:
    parts = [f'<rect x="{x + 11 * i}" y="{_TOP}" width="11" height="10" fill="{_colour(i / 9)}"/>' for i in range(10)]
    parts += [_text(x, _TOP + 24, f"{low:.3g}", "start"), _text(x + 110, _TOP + 24, f"{high:.3g}", "end")]
    if log:
        parts.append(_text(x + 55, _TOP + 38, "log scale", "middle"))
    return "".join(parts)
