"""How long each kind of group takes in each scheme, measured on this machine: in a plan of the model itself, whose groups are dealt the
candidates in turn, so that the working set is that of a real plan and each figure comes from several layers.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mixplan.compiler.clock import Clock
from mixplan.compiler.constants import Constants
from mixplan.compiler.draft import copy_graph, make_draft, write_draft
from mixplan.compiler.frontends import Captured
from mixplan.compiler.options import Options
from mixplan.compiler.search.attention import AttentionKind, AttentionUnit, attention_rules, attention_units, uniform_choice
from mixplan.compiler.search.bench import native_levels
from mixplan.compiler.search.candidates import Menu
from mixplan.compiler.search.costs import Kind, Rates, group_kind
from mixplan.compiler.search.groups import LayerGroup, find_groups
from mixplan.compiler.search.kv_choice import KvChoice
from mixplan.compiler.search.promise import Promise
from mixplan.passes.precision.overrides import Override
from mixplan.passes.precision.schemes import Scheme
from mixplan.runtime import load
from mixplan.runtime.bench.profile import profile_decode
from mixplan.runtime.plan_io import write_manifest

__all__ = ["deal", "measure_rates"]

_MOST_ROUNDS = 3


def measure_rates(
    captured: Captured,
    options: Options,
    groups: Sequence[LayerGroup],
    menu: Menu,
    units: Sequence[AttentionUnit],
    promise: Promise,
    folder: Path,
    clock: Clock,
) -> Rates:
    """Builds plans in `folder`, which is removed again. Changes nothing of `captured`. units: attention layers that may be chosen for."""
    samples: dict[tuple[Kind, str], list[float]] = {}
    scored: dict[tuple[AttentionKind, str], list[float]] = {}
    moved: dict[str, list[tuple[float, float]]] = {}
    rests: list[float] = []
    deals = deal(groups, menu)
    for number, dealt in enumerate(deals):
        try:
            kept = {unit: uniform_choice(unit, unit.layer + number) for unit in units}
            seconds, rest = _measure(captured, options, groups, dealt, kept, promise, folder, clock)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        rests.append(rest)
        for group, scheme in zip(groups, dealt, strict=True):
            taken = seconds.get(group.name, 0.0)
            if taken > 0:
                samples.setdefault((group_kind(group), str(scheme)), []).append(taken)
                if group.takes_int8:
                    moved.setdefault(str(scheme), []).append((float(group.nbytes(scheme.weight)), taken))
        for unit, choice in kept.items():
            if seconds.get(unit.name, 0.0) > 0:
                scored.setdefault((unit.kind, str(choice)), []).append(seconds[unit.name])
        clock.tell("rates", (number + 1) / len(deals))
    speed = {name: sum(size for size, _ in found) / sum(taken for _, taken in found) for name, found in moved.items()}
    usual = statistics.median(speed.values()) if speed else 1e9
    return Rates(
        {key: statistics.median(found) for key, found in samples.items()},
        {str(scheme): speed.get(str(scheme), usual) for scheme in menu.schemes},
        {key: statistics.median(found) for key, found in scored.items()},
        statistics.median(rests),
    )


def deal(groups: Sequence[LayerGroup], menu: Menu) -> list[tuple[Scheme, ...]]:
    """Schemes for all groups, in as few rounds as show each kind of group in each scheme, three at most."""
    members: dict[Kind, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group_kind(group), []).append(index)
    needed = [-(-len(menu.options[indices[0]]) // len(indices)) for indices in members.values() if len(indices) > 1]
    rounds = min(max(needed, default=1), _MOST_ROUNDS)
    found = []
    for number in range(rounds):
        dealt: list[Scheme] = [options[0] for options in menu.options]
        for indices in members.values():
            for place, index in enumerate(indices):
                options = menu.options[index]
                dealt[index] = options[(place + number * len(indices)) % len(options)]
        found.append(tuple(dealt))
    return found


def _measure(
    captured: Captured,
    options: Options,
    groups: Sequence[LayerGroup],
    dealt: Sequence[Scheme],
    kept: Mapping[AttentionUnit, KvChoice],
    promise: Promise,
    folder: Path,
    clock: Clock,
) -> tuple[Mapping[str, float], float]:
    """Seconds of each group and attention layer by name, and of the rest of the step."""
    overrides = [Override(layer, scheme, False) for group, scheme in zip(groups, dealt, strict=True) for layer in group.layers]
    rules = attention_rules(list(kept), list(kept.values()), options.attention) if kept else options.attention
    chosen = replace(options.with_overrides(overrides), dump=None, attention=rules)
    quiet = Clock(None)
    # Time does not ask what the codes are: nearest ones will do.
    constants = Constants(captured.weights)
    draft = make_draft(replace(captured, graph=copy_graph(captured.graph)), constants, chosen, quiet)
    folder.mkdir()
    written = write_draft(folder, draft, captured, constants, options.units.at(native_levels(options)), quiet)
    write_manifest(folder, written.plan, known=written.known)
    owners = {node: group.name for group in find_groups(draft) for node in group.nodes}
    owners |= {unit.node: unit.name for unit in kept and attention_units(draft)}
    seconds: dict[str, float] = {}
    with load(folder, trust=True, profile=True, max_sequences=promise.batch, kv_tokens=promise.batch * (promise.context + 96)) as model:
        profile = profile_decode(model, promise.context, promise.batch)
    for op in profile.ops:
        name = next((owners[node] for node in op.nodes if node in owners), None)
        if name is not None:
            seconds[name] = seconds.get(name, 0.0) + op.seconds
    return seconds, profile.wall - sum(seconds.values())
