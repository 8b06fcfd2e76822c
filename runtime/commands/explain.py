"""`mixplan explain`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from mixplan.runtime.terminal import emit_json, plain_table, show

__all__ = ["explain_command"]


@click.command(name="explain")
@click.argument("plan", type=click.Path(path_type=Path))
@click.argument("layer", required=False)
@click.option("--placement", is_flag=True, help="Say instead why each region and node is on its compute unit.")
@click.option("--json", "as_json", is_flag=True, help="Everything, as JSON.")
def explain_command(plan: Path, layer: str | None, placement: bool, as_json: bool) -> None:
    """Say why the layers of PLAN have their formats; with LAYER, what else it could have had and at what cost.

    LAYER is a layer's exact name, or re:PATTERN for several. What a plan was promised, its candidates and measured figures stand in its
    receipt, which a plan compiled with a fixed scheme has not.

    \b
    mixplan explain smol.plan
    mixplan explain smol.plan model.layers.0.mlp.down_proj
    mixplan explain smol.plan 're:.*v_proj' --json
    mixplan explain smol.plan --placement
    """
    from mixplan.runtime.explain_placement import explain_placement
    from mixplan.runtime.explain_plan import explain_layers, explain_plan

    if placement:
        if layer is not None:
            raise click.UsageError("--placement is about the whole plan; leave LAYER out.")
        placed = explain_placement(plan)
        if as_json:
            emit_json(placed)
        else:
            show(*_placement(placed))
        return

    data = explain_plan(plan) if layer is None else explain_layers(plan, layer)
    if as_json:
        emit_json(data)
        return
    show(*(_plan(data) if layer is None else _layers(data)))


def _placement(data: dict[str, Any]) -> Iterator[Any]:
    regions = plain_table(data["plan"], "region", "device", "nodes:r", "why")
    for row in data["regions"]:
        regions.add_row(row["region"], row["device"], str(row["nodes"]), row["reason"])
    yield regions
    if data["costs"]:
        costs = plain_table("\nCosts", "unit", "taken to be")
        for text in data["costs"]:
            costs.add_row(*text.split(": ", 1))
        yield costs
    why = {row["region"]: row["reason"] for row in data["regions"]}
    nodes = plain_table("\nNodes", "node", "op", "device", "why")
    for row in data["nodes"]:
        nodes.add_row(row["node"], row["op"], row["device"], "as its region" if row["reason"] == why[row["region"]] else row["reason"])
    yield nodes


def _plan(data: dict[str, Any]) -> Iterator[Any]:
    facts = plain_table(data["plan"], "fact", "value")
    facts.add_row("effective bits", f"{data['effective_bits']:.4f}")
    for name, value in data["promise"].items():
        facts.add_row(f"promised: {name}", value)
    for title in ("achieved", "measured"):
        for name, value in data[title].items():
            facts.add_row(f"{title}: {name}", f"{value:.6g}")
    for title in ("solver", "text"):
        for name, value in data[title].items():
            facts.add_row(f"{title}: {name}", f"{value:.6g}" if isinstance(value, float) else str(value))
    if not data["promise"]:
        facts.add_row("receipt", "none: the formats are those that the options name")
        for name, value in data["options"].items():
            facts.add_row(f"option: {name}", value)
    yield facts
    layers = plain_table("\nLayers", "layer", "scheme", "bits:r", "bytes:r", "predicted loss:r", "rule", "why")
    for layer in data["layers"]:
        loss = "" if layer["predicted_loss"] is None else f"{layer['predicted_loss']:.3g}"
        layers.add_row(layer["layer"], layer["scheme"], f"{layer['bits']:.2f}", f"{layer['bytes']:,}", loss, layer["rule"], layer["reason"])
    yield layers
    if data["attention"]:
        yield _attention(data["attention"])
    if data["curve"]:
        curve = plain_table("\nCurve", "kind", "bits:r", "loss:r", "seconds:r")
        for point in data["curve"]:
            curve.add_row(point.get("kind", "predicted"), f"{point['bits']:.3f}", f"{point['loss']:.4g}", _seconds(point.get("seconds")))
        yield curve


def _attention(choices: list[dict[str, Any]]) -> Any:
    table = plain_table("\nAttention", "layer", "keeps", "bits:r", "predicted loss:r", "why")
    for choice in choices:
        own = next(one for one in choice["candidates"] if one["scheme"] == choice["chosen"])
        table.add_row(choice["layer"], choice["chosen"], f"{own['bits']:.2f}", f"{own['predicted_loss']:.3g}", choice.get("reason", ""))
    return table


def _layers(data: dict[str, Any]) -> Iterator[Any]:
    for number, layer in enumerate(data["layers"]):
        facts = plain_table(("\n" if number else "") + layer["layer"], "fact", "value")
        facts.add_row("scheme", f"{layer['scheme']} (requested: {layer['requested']})")
        facts.add_row("effective bits", f"{layer['bits']:.4f}")
        facts.add_row("parameters, bytes", f"{layer['parameters']:,}, {layer['bytes']:,}")
        facts.add_row("why", "; ".join(filter(None, [layer["rule"], layer["reason"]])))
        if layer["decided_with"]:
            facts.add_row("decided with", ", ".join(layer["decided_with"]))
        for node in layer["nodes"]:
            group = f", group_size {node['group_size']}" if node.get("group_size") else ""
            facts.add_row(
                "computed by", f"{node['node']}: {node['op']} in {node['format']}{group}, region {node['region']} ({node['device']})"
            )
        for text in layer["rejections"]:
            facts.add_row("refused", text)
        yield facts
        if not layer["candidates"]:
            yield "No candidates: the plan has no receipt, or this layer was not searched for."
            continue
        table = plain_table("\nCandidates", "", "scheme", "bits:r", "bytes:r", "predicted loss:r", "predicted seconds:r")
        for one in layer["candidates"]:
            mark = "*" if one["chosen"] else ""
            loss, seconds = f"{one['predicted_loss']:.4g}", _seconds(one["predicted_seconds"])
            table.add_row(mark, one["scheme"], f"{one['bits']:.4f}", f"{one['bytes']:,}", loss, seconds)
        yield table


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
