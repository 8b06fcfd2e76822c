"""Cuts the plan's nodes into regions, each for one device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mixplan.runtime.plan import Node, Region, Value
from mixplan.targets.base import Support, Target

__all__ = ["FALLBACK", "Partition", "Run", "cut_regions", "partition", "supports"]

FALLBACK = "reference"
_TINY = 4


@dataclass(frozen=True)
class Partition:
    """Nodes in their final order, the regions over them, and for each node that the first target refused: its name, op and the reason."""

    nodes: list[Node]
    regions: list[Region]
    refused: list[tuple[str, str, str]]
    # Why single nodes are not where they might be, for the plan's rejections.
    notes: tuple[str, ...] = ()
    # What was taken for granted, for the plan's provenance.
    facts: Mapping[str, str] = field(default_factory=dict)


def partition(values: Sequence[Value], nodes: Sequence[Node], outputs: Sequence[int], targets: Sequence[Target]) -> Partition:
    """Give every node to the first of `targets` that supports it, else to the reference device.

    Nodes are reordered, where their inputs allow it, so that a device changes as seldom as possible. A short stretch of the preferred
    device between two of the reference device, without weights or attention, stays with the reference: a change of device costs more than
    it saves.
    """
    devices: list[str] = []
    refused: list[tuple[str, str, str]] = []
    reasons: dict[int, str] = {}
    for index, node in enumerate(nodes):
        device = ""
        for target in targets:
            support = supports(target, node, values)
            if support.ok:
                device = target.name
                break
            if not reasons.get(index):
                reasons[index] = f"{target.name}: {support.reason}"
        if not device:
            device = FALLBACK
            refused.append((node.name, node.op, reasons[index]))
        devices.append(device)
    order = _schedule(nodes, devices) if len(set(devices)) > 1 else list(range(len(nodes)))
    placed = [nodes[i] for i in order]
    runs = _absorb(placed, _runs([devices[i] for i in order]))
    named = {nodes[i].name: reason for i, reason in reasons.items()}
    return Partition(placed, cut_regions(values, placed, outputs, runs, _reasons(placed, runs, named)), refused)


def supports(target: Target, node: Node, values: Sequence[Value]) -> Support:
    """What the target answers. One of another package that fails instead of answering is passed over, like one that says no."""
    try:
        return target.supports(node, values)
    except MemoryError:
        raise
    except Exception as error:  # another package's code may raise anything; our own must not
        if type(target).__module__.startswith("mixplan."):
            raise
        return Support(False, f"it failed to say whether it supports {node.op!r}: {type(error).__name__}: {error}")


def _schedule(nodes: Sequence[Node], devices: Sequence[str]) -> list[int]:
    """A topological order that stays on a device as long as it has ready nodes; among these, the original order."""
    maker = {value: i for i, node in enumerate(nodes) for value in node.outputs}
    waiting = [len({maker[v] for v in node.inputs if v in maker}) for node in nodes]
    users: dict[int, list[int]] = {}
    for i, node in enumerate(nodes):
        for source in {maker[v] for v in node.inputs if v in maker}:
            users.setdefault(source, []).append(i)
    ready = sorted(i for i, count in enumerate(waiting) if count == 0)
    order: list[int] = []
    current = devices[ready[0]] if ready else ""
    while ready:
        index = next((i for i in ready if devices[i] == current), ready[0])
        current = devices[index]
        ready.remove(index)
        order.append(index)
        for user in users.get(index, ()):
            waiting[user] -= 1
            if waiting[user] == 0:
                ready.append(user)
        ready.sort()
    return order


Run = tuple[str, int, int]


def _runs(devices: Sequence[str]) -> list[Run]:
    """Maximal stretches [start, stop) on one device."""
    runs: list[Run] = []
    for i, device in enumerate(devices):
        if runs and runs[-1][0] == device:
            runs[-1] = (device, runs[-1][1], i + 1)
        else:
            runs.append((device, i, i + 1))
    return runs


def _absorb(nodes: Sequence[Node], runs: list[Run]) -> list[Run]:
    """Give tiny stretches between two reference stretches to the reference."""
    heavy = ("linear", "linear_q", "gated_linear", "gated_linear_q", "grouped_linear", "embedding", "attention", "matmul")
    devices: list[str] = []
    for k, (device, start, stop) in enumerate(runs):
        between = 0 < k < len(runs) - 1 and runs[k - 1][0] == runs[k + 1][0] == FALLBACK
        tiny = between and stop - start < _TINY and not any(nodes[i].op in heavy for i in range(start, stop))
        devices += [FALLBACK if tiny else device] * (stop - start)
    return _runs(devices)


def _reasons(nodes: Sequence[Node], runs: Sequence[Run], reasons: dict[str, str]) -> list[str]:
    """For each stretch of the reference device, why its nodes are there."""
    found = []
    for device, start, stop in runs:
        why = dict.fromkeys(reasons[node.name] for node in nodes[start:stop] if node.name in reasons)
        found.append("; ".join(why) if device == FALLBACK else "")
    return found


def cut_regions(
    values: Sequence[Value], nodes: Sequence[Node], outputs: Sequence[int], runs: Sequence[Run], reasons: Sequence[str]
) -> list[Region]:
    """A region for each stretch of nodes, with what crosses its borders."""
    last: dict[int, int] = {v: i for i, node in enumerate(nodes) for v in node.inputs}
    last.update((v, len(nodes)) for v in outputs)
    regions = []
    for k, ((device, start, stop), reason) in enumerate(zip(runs, reasons, strict=True)):
        made = [v for node in nodes[start:stop] for v in node.outputs]
        used = dict.fromkeys(v for node in nodes[start:stop] for v in node.inputs if v >= 0 and values[v].kind != "const")
        regions.append(
            Region(
                name=f"r{k}_{device}",
                device=device,
                start=start,
                stop=stop,
                inputs=tuple(v for v in used if v not in set(made)),
                outputs=tuple(v for v in made if last.get(v, -1) >= stop),
                reason=reason,
            )
        )
    return regions
