"""Plots of the report as SVG text: linear x, logarithmic y, curves and labelled points."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Plot", "Series", "draw"]

_WIDTH, _HEIGHT = 640, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 16, 14, 48


@dataclass(frozen=True)
class Series:
    """Points (x, y, label). style: the CSS class; line: joined by a line, and without marks."""

    name: str
    style: str
    points: tuple[tuple[float, float, str], ...]
    line: bool = False


@dataclass(frozen=True)
class Plot:
    """Axes' names and the series on them."""

    title: str
    x: str
    y: str
    series: tuple[Series, ...]


def draw(plot: Plot) -> str:
    """One <svg>. Points whose y is not above 0 cannot be on a logarithmic axis, and are left out."""
    shown = [(x, y) for one in plot.series for x, y, _ in one.points if y > 0]
    if not shown:
        return ""
    xs, ys = [x for x, _ in shown], [y for _, y in shown]
    # A curve's dearest points lose next to nothing: six decades below the top are enough.
    top = math.log10(max(ys))
    low = max(math.log10(min(ys)), top - 6)
    x_low, x_high = _widened(min(xs), max(xs))
    y_low, y_high = _widened(low, top)

    def at(x: float, y: float) -> tuple[float, float]:
        across = (x - x_low) / (x_high - x_low)
        up = (max(math.log10(y), y_low) - y_low) / (y_high - y_low)
        return _LEFT + across * (_WIDTH - _LEFT - _RIGHT), _HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM)

    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(plot.title)}">', f"<title>{escape(plot.title)}</title>"]
    parts += _axes(plot, (x_low, x_high), (y_low, y_high))
    for one in plot.series:
        parts += _series(one, at)
    parts.append("</svg>")
    return "\n".join(parts)


def _series(one: Series, at: Callable[[float, float], tuple[float, float]]) -> list[str]:
    placed = [(*at(x, y), label) for x, y, label in one.points if y > 0]
    if one.line:
        return [
            f'<polyline class="{one.style}" points="'
            + " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in placed)
            + f'"><title>{escape(one.name)}</title></polyline>'
        ]
    out = []
    for x, y, label in placed:
        out.append(f'<circle class="{one.style}" cx="{x:.1f}" cy="{y:.1f}" r="4"><title>{escape(label or one.name)}</title></circle>')
        if label:
            anchor = "end" if x > _WIDTH * 0.75 else "start"
            beside = x - 7 if anchor == "end" else x + 7
            out.append(f'<text class="label" x="{beside:.1f}" y="{y - 5:.1f}" text-anchor="{anchor}">{escape(label)}</text>')
    return out


def _axes(plot: Plot, x_range: tuple[float, float], y_range: tuple[float, float]) -> list[str]:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = [f'<rect class="frame" x="{_LEFT}" y="{_TOP}" width="{right - _LEFT}" height="{bottom - _TOP}"/>']
    for tick in _ticks(*x_range):
        x = _LEFT + (tick - x_range[0]) / (x_range[1] - x_range[0]) * (right - _LEFT)
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{tick:g}</text>')
    for tick in _decades(*y_range):
        y = bottom - (math.log10(tick) - y_range[0]) / (y_range[1] - y_range[0]) * (bottom - _TOP)
        parts.append(f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    parts.append(f'<text x="{(_LEFT + right) / 2:.0f}" y="{_HEIGHT - 10}" text-anchor="middle">{escape(plot.x)}</text>')
    middle = (_TOP + bottom) / 2
    parts.append(f'<text x="16" y="{middle:.0f}" text-anchor="middle" transform="rotate(-90 16 {middle:.0f})">{escape(plot.y)}</text>')
    return parts


def _widened(low: float, high: float) -> tuple[float, float]:
    room = (high - low) * 0.04 or 0.5
    return low - room, high + room


def _ticks(low: float, high: float) -> Sequence[float]:
    """About eight round numbers between."""
    raw = (high - low) / 8
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= raw)
    return [round(number * step, 12) for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _decades(low: float, high: float) -> Sequence[float]:
    """1, 2, 5 of each power of ten where there are few powers, else the powers alone."""
    factors = (1, 2, 5) if high - low < 3 else (1,)
    found = [factor * 10.0**power for power in range(math.floor(low), math.ceil(high) + 1) for factor in factors]
    return [tick for tick in found if low <= math.log10(tick) <= high]
