"""`mixplan diff`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from mixplan.runtime.terminal import emit_json, plain_table, show

__all__ = ["diff_command"]

_TITLES = {
    "facts": "Facts",
    "promise": "Promised",
    "achieved": "Achieved",
    "measured": "Measured",
    "ops": "Nodes by op",
    "regions": "Regions",
    "kernels": "Kernels, by SHA-256",
    "files": "Files, by SHA-256",
    "provenance": "Provenance",
}
_DIGEST = 64


@click.command(name="diff")
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Everything, as JSON.")
def diff_command(a: Path, b: Path, as_json: bool) -> None:
    """Show in what the plans A and B differ: formats, bits, sizes, measured figures, kernels, regions, provenance.

    \b
    mixplan diff before.plan after.plan
    """
    from mixplan.runtime.diff_plans import diff_plans

    data = diff_plans(a, b)
    if as_json:
        emit_json(data)
        return
    if data["same"]:
        click.echo(f"{a} and {b} are equal to the last byte.")
        return
    show(*_tables(data))


def _tables(data: dict[str, Any]) -> Iterator[Any]:
    yield f"A: {data['a']}\nB: {data['b']}"
    layers = plain_table(
        f"\nLayers: {len(data['layers'])} differ, {data['layers_equal']} are equal",
        "layer",
        "scheme A",
        "scheme B",
        "bits A:r",
        "bits B:r",
        "bytes B - A:r",
    )
    for name, sides in data["layers"].items():
        one, other = sides["a"], sides["b"]
        grown = (other["bytes"] if other else 0) - (one["bytes"] if one else 0)
        cells = [side[key] if side else "" for key in ("scheme", "bits") for side in (one, other)]
        layers.add_row(name, *cells[:2], *(f"{bits:.2f}" if bits != "" else "" for bits in cells[2:]), f"{grown:+,}")
    if data["layers"]:
        yield layers
    for key, title in _TITLES.items():
        if data[key]:
            table = plain_table(f"\n{title}", "", "A", "B")
            for name, sides in data[key].items():
                table.add_row(name, _cell(sides["a"]), _cell(sides["b"]))
            yield table
    if not data["layers"]:
        yield f"\nAll {data['layers_equal']} layers have equal formats."


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, str) and len(value) == _DIGEST and all(letter in "0123456789abcdef" for letter in value):
        return value[:12]
    return f"{value:.6g}" if isinstance(value, float) else str(value)
