"""The scaling study's tables and plot, from points that are made up."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import asdict

from benchmarks.scaling import Point, main, tables
from benchmarks.scaling_plot import draw


def _points():
    rows = [Point("context", "a", c, 1, t, 0.002 * c / 128 / t, 0.001 * c / 128 / t, 76e6, 0.001) for t in (1, 2) for c in (128, 1024)]
    return [*rows, Point("batch", "a", 128, 16, 2, 0.008, 0.004, 80e6, 0.003), Point("batch", "a", 128, 32, 2, 0.012, 0.004, 80e6, 0.003)]


def test_tables_state_shares_of_the_limit():
    text = tables(_points())
    assert "| a | 128 | 1 | 2 | 1.00 ms | 1000 | 0.50 ms | 50% | 76 MB | 76.0 |" in text
    assert "| a | 128 | 16 | 2 | 8.00 ms | 2000 | 4.00 ms | 50% | 80 MB | 10.0 |" in text
    assert "Model size" not in text


def test_a_saved_run_is_drawn_without_measuring(tmp_path, capsys):
    saved, svg = tmp_path / "run.json", tmp_path / "plot.svg"
    saved.write_text(json.dumps([asdict(point) for point in _points()]))
    assert main(["--draw", str(saved), "--svg", str(svg)]) == 0
    assert "**Context, batch 1**" in capsys.readouterr().out
    root = ET.fromstring(svg.read_text())
    lines = [node for node in root.iter() if node.tag.endswith("polyline")]
    assert len(lines) == 2 * (2 + 1)  # measured and limit: two numbers of threads by context, one by batch
    assert "1 thread (dashed: limit)" in svg.read_text()


def test_a_plot_without_points_is_an_empty_panel():
    ET.fromstring(draw([{"title": "nothing", "axis": "x", "curves": {}}]))
