"""The program of a plan's region, made anew from the plan: for plans whose own kernels are not trusted, or were built for other GPUs."""

from __future__ import annotations

import msgspec

from mixplan.runtime.devices.gpu_program import encode_program
from mixplan.runtime.plan import Plan
from mixplan.targets.base import CompileOptions
from mixplan.targets.gpu.arch import JIT, arch_of
from mixplan.targets.gpu.lower.region import lower_region
from mixplan.targets.gpu.target import GpuTarget

__all__ = ["rebuild"]


def rebuild(plan: Plan, region_index: int, arch: str) -> bytes:
    """See the module. Raises MissingExtraError where triton is not installed, UnsupportedError where the region cannot run on a GPU."""
    region = plan.regions[region_index]
    if arch == JIT:
        program, _ = lower_region(plan, region, arch_of(JIT))
        return encode_program(msgspec.structs.replace(program, compiler="jit"), [])
    return GpuTarget().compile(plan, region, CompileOptions(levels=(arch,))).kernels[arch]
