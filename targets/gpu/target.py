"""The GPU target: what it supports, and how it compiles a region."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from mixplan.runtime.devices.gpu_program import Program, encode_program
from mixplan.runtime.errors import InternalError, MixplanError
from mixplan.runtime.formats import FORMAT_NAMES
from mixplan.runtime.hardware import devices
from mixplan.runtime.plan import Node, Plan, Region, Value
from mixplan.targets.base import Capabilities, CompiledRegion, CompileOptions, CostModel, Support
from mixplan.targets.gpu.arch import ARCHS, DEFAULT, JIT, resolve_archs
from mixplan.targets.gpu.build import build_all, compiler_identity
from mixplan.targets.gpu.builds import Build, with_builds
from mixplan.targets.gpu.costs import gpu_costs, gpu_record
from mixplan.targets.gpu.listing import listing
from mixplan.targets.gpu.lower.region import lower_region, refusal
from mixplan.targets.gpu.tuning.run import tuned_archs

__all__ = ["GpuTarget", "with_binaries"]


def with_binaries(program: Program, builds: Sequence[Build], compiler: str) -> bytes:
    """The file of a program whose kernels were built."""
    done = msgspec.structs.replace(with_builds(program, builds), compiler=compiler)
    return encode_program(done, [build.data for build in builds])


@dataclass(frozen=True)
class GpuTarget:
    """Compiles regions to one program per architecture, with Triton; no GPU is needed for it. levels: those that costs are told for."""

    levels: tuple[str, ...] = ()
    name = "gpu"

    def for_levels(self, levels: Sequence[str]) -> GpuTarget:
        """The same target, about to compile for these architectures."""
        return GpuTarget(resolve_archs(levels)) if levels else self

    def cost_model(self) -> CostModel:
        """By the record of the GPU that is here, where it runs what is compiled for; else by what its maker says of one that would."""
        return gpu_costs(gpu_record(devices(), self.levels))

    def capabilities(self) -> Capabilities:
        """Available where triton is installed."""
        try:
            available = Support(True, compiler_identity())
        except MixplanError as error:
            available = Support(False, str(error))
        notes = {name: arch.devices for name, arch in ARCHS.items()}
        errors = dict.fromkeys(ARCHS, 2.0**-9)  # both factors of a product of floats become bf16
        activations = ("bf16", "i8", "e4m3")
        return Capabilities(self.name, available, DEFAULT, FORMAT_NAMES, activations, notes, errors)

    def resolve_levels(self, wanted: Sequence[str]) -> tuple[str, ...]:
        """See Target.resolve_levels: levels are architectures."""
        return resolve_archs(wanted)

    def supports(self, node: Node, values: Sequence[Value]) -> Support:
        """See Target.supports."""
        reason = refusal(node, values)
        return Support(not reason, reason)

    def compile(self, plan: Plan, region: Region, options: CompileOptions) -> CompiledRegion:
        """See Target.compile. All architectures are built together, `options.jobs` kernels at a time."""
        levels = resolve_archs(options.levels)
        archs = {level: ARCHS[level] for level in levels}
        notes: tuple[str, ...] = ()
        if options.tune:
            archs, notes = tuned_archs(plan, region, archs, options.jobs)
        lowered = {level: lower_region(plan, region, archs[level]) for level in levels}
        wanted = [(level, request) for level, (_, requests) in lowered.items() if level != JIT for request in requests]
        compiler = compiler_identity()
        builds = build_all(wanted, options.jobs)
        spilled = [f"{request.kernel} ({arch})" for (arch, request), build in zip(wanted, builds, strict=True) if build.spilled]
        if any(build.shared > ARCHS[arch].shared for (arch, _), build in zip(wanted, builds, strict=True)):
            raise InternalError("A GPU kernel asks for more shared memory than its architecture has.")
        kernels, start = {}, 0
        for level, (program, requests) in lowered.items():
            if level == JIT:
                kernels[level] = encode_program(msgspec.structs.replace(program, compiler=compiler), [])
                continue
            kernels[level] = with_binaries(program, builds[start : start + len(requests)], compiler)
            start += len(requests)
        most = max(builds, key=lambda build: build.registers, default=None)
        return CompiledRegion(
            kernels,
            listing(next(iter(lowered.values()))[0]),
            suffix="bin",
            source_suffix="txt",
            metadata={
                "compiler": compiler,
                "arena_bytes": max(program.arena for program, _ in lowered.values()),
                "launches": max(len(program.launches) for program, _ in lowered.values()),
                "kernels": len(builds),
                "most_registers": most.registers if most else 0,
                "most_shared_bytes": max((build.shared for build in builds), default=0),
                "spilled": spilled,
                "levels": list(levels),
            },
            notes=notes,
        )
