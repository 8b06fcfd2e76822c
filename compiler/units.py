"""The targets of a compile, told what the user chose of those that have something to choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

from mixplan.compiler.placing.rules import PlacingRules
from mixplan.runtime.errors import OptionError
from mixplan.runtime.plan import Node, Plan
from mixplan.targets.base import CompileOptions, Target
from mixplan.targets.levels import check_levels, levels_for
from mixplan.targets.registry import get_target

__all__ = ["NPU", "ProviderTarget", "Units", "parse_units"]

NPU, GPU = "npu", "gpu"


@runtime_checkable
class ProviderTarget(Protocol):
    """A target that compiles for one of several providers."""

    def for_provider(self, provider: str) -> Target:
        """The target for a provider. OptionError where there is none of that name."""

    def needs_range(self, node: Node) -> bool:
        """Whether a node's first output gets a static scale."""


@runtime_checkable
class LeveledTarget(Protocol):
    """A target whose costs depend on what it compiles for."""

    def for_levels(self, levels: Sequence[str]) -> Target:
        """The target for these levels, () for its own choice."""


@dataclass(frozen=True)
class Units:
    """Names of targets, in order of preference, and what was chosen for them: see CompileOptions."""

    names: tuple[str, ...] = ("cpu",)
    provider: str = ""
    activation: str = ""
    levels: tuple[str, ...] = ()
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    placing: PlacingRules | None = None
    """How to weigh the targets against each other; None gives a node to the first that takes it."""
    tune: bool = False

    def target(self, name: str) -> Target:
        """The target called `name`."""
        target = get_target(name)
        if self.provider and isinstance(target, ProviderTarget):
            return target.for_provider(self.provider)
        if isinstance(target, LeveledTarget):
            return target.for_levels(levels_for(name, self.levels))
        return target

    def targets(self) -> list[Target]:
        """All of them, in order."""
        return [self.target(name) for name in self.names]

    def options(self, name: str) -> CompileOptions:
        """What a region of the target `name` is compiled with."""
        return CompileOptions(levels=levels_for(name, self.levels), activation=self.activation, ranges=self.ranges, tune=self.tune)

    def at(self, levels: Sequence[str]) -> Units:
        """The same, with other levels."""
        return replace(self, levels=tuple(levels))

    def with_ranges(self, ranges: Mapping[str, tuple[float, float]]) -> Units:
        """The same, with the ranges of activations."""
        return replace(self, ranges=ranges)

    def rounded_values(self, plan: Plan) -> tuple[str, ...]:
        """Names of values that get static scales, and whose range is therefore needed."""
        found: dict[str, None] = {}
        for region in plan.regions:
            target = self.target(region.device)
            if isinstance(target, ProviderTarget):
                nodes = plan.nodes[region.start : region.stop]
                found |= {plan.values[node.outputs[0]].name: None for node in nodes if target.needs_range(node)}
        return tuple(found)


def parse_units(
    names: Sequence[str],
    provider: str | None,
    activation: str | None,
    levels: Sequence[str] | None,
    placing: PlacingRules | None,
    tune: bool = False,
) -> Units:
    """Raises OptionError for names that are not known, and for choices that no target of these has.

    A name such as cpu+npu weighs targets against each other, by `placing`; that is an error where it is given and nothing is weighed.
    """
    mixed = [name for name in names if "+" in name]
    if mixed and len(names) > 1:
        raise OptionError(f"targets are {', '.join(names)}; {mixed[0]} stands for all of them.", hint="Give --target A+B, or A,B.")
    names = tuple(mixed[0].split("+")) if mixed else tuple(names)
    if len(set(names)) != len(names):
        raise OptionError(f"targets are {', '.join(names)}; one is named twice.")
    if placing is not None and not mixed:
        raise OptionError(
            f"options of placing are given, and nothing is weighed: the target is {' '.join(names)}.", hint="Give --target cpu+npu."
        )
    if not names:
        raise OptionError("targets is empty; give at least one, such as 'cpu'.")
    for option, value in (("provider", provider), ("activation_type", activation)):
        if value is not None and NPU not in names:
            raise OptionError(
                f"{option} is {value!r}, which is for the NPU, and the target is {' '.join(names)}.", hint="Give --target npu."
            )
    if tune and GPU not in names:
        raise OptionError(f"tune is for the GPU, and the target is {' '.join(names)}.", hint="Give --target gpu.")
    weighed = (placing or PlacingRules()) if mixed else None
    units = Units(tuple(names), provider or "", activation or "", tuple(levels or ()), placing=weighed, tune=tune)
    check_levels(units.names, units.levels)
    for target in units.targets():
        target.resolve_levels(levels_for(target.name, units.levels))
    if tune:
        from mixplan.targets.gpu.tuning.run import gpu_for

        gpu_for(units.target(GPU).resolve_levels(levels_for(GPU, units.levels)))
    if activation is not None:
        from mixplan.targets.npu.target import check_activation

        check_activation(provider or "cpu", activation)
    return units
