"""A small SVG plot: panels of measured curves (solid) with their limits (dashed), both axes logarithmic."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["draw"]

_WIDTH, _HEIGHT = 420, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 34, 46
_COLOURS = ("#1f6fb4", "#c4572b", "#3a8f4d", "#7a5aa6")


def _ticks(least: float, most: float) -> list[float]:
    """1, 2 and 5 times powers of ten within the range."""
    first, last = math.floor(math.log10(least)), math.ceil(math.log10(most))
    return [f * 10.0**e for e in range(first, last + 1) for f in (1, 2, 5) if least <= f * 10.0**e <= most]


def _panel(series: Mapping[str, Any], left: float) -> list[str]:
    curves: Mapping[str, Sequence[tuple[float, float, float]]] = series["curves"]
    points = [point for curve in curves.values() for point in curve]
    if not points:
        return []
    low_x, high_x = min(p[0] for p in points), max(p[0] for p in points)
    low_y, high_y = 0.8 * min(min(p[1:]) for p in points), 1.25 * max(max(p[1:]) for p in points)

    def at_x(value: float) -> float:
        return left + _LEFT + (math.log(value / low_x) / math.log(high_x / low_x) if high_x > low_x else 0.5) * (_WIDTH - _LEFT - _RIGHT)

    def at_y(value: float) -> float:
        return _HEIGHT - _BOTTOM - math.log(value / low_y) / math.log(high_y / low_y) * (_HEIGHT - _TOP - _BOTTOM)

    out = [f'<text x="{left + _WIDTH / 2:.0f}" y="18" text-anchor="middle" font-weight="bold">{series["title"]}, ms</text>']
    for tick in _ticks(low_y, high_y):
        y = at_y(tick)
        out.append(f'<line x1="{left + _LEFT}" y1="{y:.1f}" x2="{left + _WIDTH - _RIGHT}" y2="{y:.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{left + _LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for value in sorted({p[0] for p in points}):
        out.append(f'<text x="{at_x(value):.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{value:g}</text>')
    out.append(f'<text x="{left + (_LEFT + _WIDTH) / 2:.0f}" y="{_HEIGHT - 10}" text-anchor="middle">{series["axis"]}</text>')
    for number, (name, curve) in enumerate(curves.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        measured = " ".join(f"{at_x(x):.1f},{at_y(y):.1f}" for x, y, _ in curve)
        limit = " ".join(f"{at_x(x):.1f},{at_y(y):.1f}" for x, _, y in curve)
        out.append(f'<polyline points="{measured}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out.append(f'<polyline points="{limit}" fill="none" stroke="{colour}" stroke-width="1.5" stroke-dasharray="5 4"/>')
        out += [f'<circle cx="{at_x(x):.1f}" cy="{at_y(y):.1f}" r="3" fill="{colour}"/>' for x, y, _ in curve]
        y = _TOP + 14 + 16 * number
        out.append(f'<text x="{left + _LEFT + 10}" y="{y}" fill="{colour}">{name} (dashed: limit)</text>')
    return out


def draw(panels: Sequence[Mapping[str, Any]]) -> str:
    """The SVG's text. A panel has a title, the name of its axis, and curves: name -> [(position, measured, limit)]."""
    width = _WIDTH * len(panels)
    body = [line for number, panel in enumerate(panels) for line in _panel(panel, number * _WIDTH)]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{_HEIGHT}" viewBox="0 0 {width} {_HEIGHT}"'
    style = 'font-family="sans-serif" font-size="12">'
    return "\n".join([f"{head} {style}", f'<rect width="{width}" height="{_HEIGHT}" fill="white"/>', *body, "</svg>"]) + "\n"
