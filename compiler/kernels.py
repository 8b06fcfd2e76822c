"""Regions compiled by their targets, while the weights are being written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mixplan.compiler.output import reporting_disk_errors
from mixplan.runtime.errors import MixplanError, UnsupportedError
from mixplan.runtime.plan import Plan, Region
from mixplan.targets.base import CompiledRegion, CompileOptions
from mixplan.targets.kernel_files import write_kernels
from mixplan.targets.registry import get_target

__all__ = ["BuiltRegion", "build_regions", "write_regions"]


@dataclass(frozen=True)
class BuiltRegion:
    """A region and what its target made of it."""

    region: Region
    compiled: CompiledRegion


def build_regions(plan: Plan, levels: Sequence[str]) -> list[BuiltRegion]:
    """Compile every region of the plan, whose weights need not exist yet."""
    options = CompileOptions(levels=tuple(levels))
    return [BuiltRegion(region, _compile(plan, region, options)) for region in plan.regions]


def _compile(plan: Plan, region: Region, options: CompileOptions) -> CompiledRegion:
    try:
        return get_target(region.device).compile(plan, region, options)
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
