"""Borders between regions: what one unit gives is what the next one takes, checked when a plan is compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mixplan.runtime.errors import PlacementError
from mixplan.runtime.plan import Plan, Region, Shape, Value
from mixplan.targets.base import CompiledRegion, Port

__all__ = ["check_boundaries"]


def check_boundaries(plan: Plan, built: Sequence[tuple[Region, CompiledRegion]]) -> None:
    """PlacementError where a region was compiled for another dtype or shape of a value than the plan declares, or than the region that
    makes it was, and where one reads what no region before it gives.
    """
    given: dict[int, str] = {}
    for region, compiled in built:
        for value in region.inputs:
            if plan.values[value].kind == "node" and value not in given:
                raise PlacementError(f"Region {region.name!r} reads {plan.values[value].name!r}, which no region before it gives out.")
            _check(plan.values[value], compiled.ports, value, region, "takes", given.get(value, "the runtime"))
        for value in region.outputs:
            _check(plan.values[value], compiled.ports, value, region, "gives", "the plan")
            given[value] = f"region {region.name!r} ({region.device})"


def _check(declared: Value, ports: Mapping[int, Port], index: int, region: Region, verb: str, other: str) -> None:
    port = ports.get(index)
    if port is None or (port.dtype == declared.dtype.value and _same(port.shape, declared.shape)):
        return
    raise PlacementError(
        f"At the border of region {region.name!r} ({region.device}), {declared.name!r} is {declared.dtype.value} {list(declared.shape)} "
        f"for {other}, and the region {verb} {port.dtype} {list(port.shape)}.",
        hint="A fault of the target's compile half; keep the node that makes the value and those that read it on one unit.",
    )


def _same(port: Shape, declared: Shape) -> bool:
    """Dims agree; one that the target leaves open (-1) fits any."""
    return len(port) == len(declared) and all(a in (b, -1) for a, b in zip(port, declared, strict=True))
