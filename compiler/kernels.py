"""Regions compiled by their targets, while the weights are being written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mixplan.compiler.output import reporting_disk_errors
from mixplan.compiler.units import Units
from mixplan.runtime.errors import MixplanError, UnsupportedError
from mixplan.runtime.plan import Plan, Region
from mixplan.targets.base import CompiledRegion
from mixplan.targets.kernel_files import write_kernels

__all__ = ["BuiltRegion", "build_regions", "write_regions"]


@dataclass(frozen=True)
class BuiltRegion:
    """A region and what its target made of it."""

    region: Region
    compiled: CompiledRegion


def build_regions(plan: Plan, units: Units) -> list[BuiltRegion]:
    """Compile every region of the plan, whose weights need not exist yet."""
    return [BuiltRegion(region, _compile(plan, region, units)) for region in plan.regions]


def _compile(plan: Plan, region: Region, units: Units) -> CompiledRegion:
    try:
        return units.target(region.device).compile(plan, region, units.options(region.device))
    except (MixplanError, OSError, ImportError):
        raise
    except Exception as error:
        raise UnsupportedError(
            f"The target {region.device!r} failed to compile region {region.name!r}: {type(error).__name__}: {error}.",
            hint="Report it to who makes the target, or compile for another.",
        ) from error


def write_regions(root: Path, built: Sequence[BuiltRegion]) -> tuple[Region, ...]:
    """Write kernels and sources; gives the regions with the paths of these files."""
    regions = []
    for one in built:
        with reporting_disk_errors(root):
            regions.append(write_kernels(root, one.region, one.compiled))
    return tuple(regions)
