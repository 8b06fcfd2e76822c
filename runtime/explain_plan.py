"""What `mixplan explain` shows: why a plan's layers have their formats, and what else they could have had. No native code is loaded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from mixplan.runtime.errors import OptionError
from mixplan.runtime.plan import Decision, Node, Plan
from mixplan.runtime.plan_io import read_plan
from mixplan.runtime.receipt import LayerChoice, Receipt, read_receipt

__all__ = ["explain_layers", "explain_plan"]


def explain_plan(path: Path) -> dict[str, Any]:
    """Promise, outcome, solver and measured figures (of the receipt; empty without one), and each layer with its reason. Sizes in bytes."""
    plan, receipt = _open(path)
    choices = _choices(receipt)
    return {
        "plan": plan.name,
        "effective_bits": plan.effective_bits,
        "options": plan.provenance.options,
        "promise": receipt.promise if receipt else {},
        "achieved": receipt.achieved if receipt else {},
        "measured": receipt.measured if receipt else {},
        "solver": msgspec.to_builtins(receipt.solver) if receipt else {},
        "text": receipt.text if receipt else {},
        "curve": msgspec.to_builtins(receipt.curve) if receipt else [],
        "layers": [{**_layer(decision), **_chosen(decision, choices.get(decision.layer))} for decision in plan.decisions],
        "attention": msgspec.to_builtins(receipt.attention) if receipt else [],
    }


def explain_layers(path: Path, wanted: str) -> dict[str, Any]:
    """All that the plan says of the layers named `wanted`, or of those that re:PATTERN matches as a whole: format, nodes, candidates with
    their costs, and what was refused. OptionError where there is none."""
    plan, receipt = _open(path)
    choices = _choices(receipt)
    found = _find(plan, wanted)
    return {
        "plan": plan.name,
        "layers": [
            {
                **_layer(decision),
                **_chosen(decision, choices.get(decision.layer)),
                "candidates": _candidates(decision, choices.get(decision.layer)),
                "nodes": [_node(plan, index) for index in _nodes(plan, decision.layer)],
                "rejections": [text for text in plan.rejections if _identifier(decision.layer) in text or decision.layer in text],
            }
            for decision in found
        ],
    }


def _open(path: Path) -> tuple[Plan, Receipt | None]:
    with read_plan(path, verify="manifest") as loaded:
        return loaded.plan, read_receipt(loaded)


def _choices(receipt: Receipt | None) -> dict[str, LayerChoice]:
    """By layer. Layers that were decided together stand in one choice."""
    return {layer: choice for choice in (receipt.layers if receipt else ()) for layer in choice.layer.split(" + ")}


def _layer(decision: Decision) -> dict[str, Any]:
    return {
        "layer": decision.layer,
        "scheme": decision.scheme,
        "requested": decision.requested,
        "parameters": decision.parameters,
        "bits": decision.bits,
        "bytes": round(decision.parameters * decision.bits / 8),
        "rule": decision.rule,
        "reason": decision.reason,
    }


def _chosen(decision: Decision, choice: LayerChoice | None) -> dict[str, Any]:
    """The predicted cost of what was chosen; None without a receipt."""
    if choice is None:
        return {"predicted_loss": None, "predicted_seconds": None, "decided_with": []}
    own = next((one for one in choice.candidates if one.scheme == choice.chosen), None)
    return {
        "reason": choice.reason or decision.reason,
        "predicted_loss": own.predicted_loss if own else None,
        "predicted_seconds": own.predicted_seconds if own else None,
        "decided_with": [layer for layer in choice.layer.split(" + ") if layer != decision.layer],
    }


def _candidates(decision: Decision, choice: LayerChoice | None) -> list[dict[str, Any]]:
    """The narrowest first; bytes of this layer alone."""
    candidates = sorted(choice.candidates, key=lambda one: (one.bits, one.predicted_loss)) if choice else []
    return [
        {
            "scheme": one.scheme,
            "chosen": choice is not None and one.scheme == choice.chosen,
            "bits": one.bits,
            "bytes": round(decision.parameters * one.bits / 8),
            "predicted_loss": one.predicted_loss,
            "predicted_seconds": one.predicted_seconds,
        }
        for one in candidates
    ]


def _find(plan: Plan, wanted: str) -> Sequence[Decision]:
    names = [decision.layer for decision in plan.decisions]
    if wanted.startswith("re:"):
        try:
            pattern = re.compile(wanted[3:])
        except re.error as error:
            raise OptionError(f"{wanted!r} is not a regular expression: {error}.") from None
        found = [decision for decision in plan.decisions if pattern.fullmatch(decision.layer)]
    else:
        found = [decision for decision in plan.decisions if decision.layer == wanted.removesuffix(".weight")]
    if not found:
        near = get_close_matches(wanted, names, 3, 0.3) or [name for name in names if wanted in name][:3]
        hint = f"Near it: {', '.join(near)}." if near else "`mixplan inspect PLAN` lists them."
        raise OptionError(f"No layer of {plan.name} is {wanted!r}; it has {len(names)}.", hint=f"{hint} re:PATTERN names several.")
    return found


def _identifier(layer: str) -> str:
    return layer.replace(".", "_")


def _nodes(plan: Plan, layer: str) -> list[int]:
    """Nodes that read the layer's packed weight. Where layers are merged, the weight bears the first one's name, the node those of all."""
    parent, _, leaf = layer.rpartition(".")
    merged = re.compile(rf"{re.escape(_identifier(parent))}_(?:.*_)?{re.escape(leaf)}(?:_.*)?")
    found = []
    for index, node in enumerate(plan.nodes):
        keys = {plan.values[value].name for value in node.inputs if value >= 0 and plan.values[value].kind == "const"}
        if "format" in node.attrs and (f"{layer}.weight" in keys or merged.fullmatch(node.name)):
            found.append(index)
    return found


def _node(plan: Plan, index: int) -> dict[str, Any]:
    node: Node = plan.nodes[index]
    region = next(region for region in plan.regions if region.start <= index < region.stop)
    facts: dict[str, Any] = {
        name: node.attrs[name] for name in ("format", "group_size", "rows", "columns", "experts") if name in node.attrs
    }
    return {"node": node.name, "op": node.op, "rule": node.rule, **facts, "region": region.name, "device": region.device}
