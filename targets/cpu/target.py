"""The CPU target: what it supports, and how it compiles a region."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from mixplan.runtime.devices.cpu_info import allowed_cores
from mixplan.runtime.errors import MixplanError, UnsupportedError
from mixplan.runtime.formats import FORMAT_NAMES
from mixplan.runtime.hardware import hardware
from mixplan.runtime.plan import Node, Plan, Region, Value
from mixplan.targets.base import Capabilities, CompiledRegion, CompileOptions, CostModel, Support
from mixplan.targets.cpu.cache import cached_kernel, kernel_key
from mixplan.targets.cpu.codegen.ops.table import CHECKS, EMITTERS, POINTWISE
from mixplan.targets.cpu.costs import cpu_costs
from mixplan.targets.cpu.isa import default_levels, resolve_levels
from mixplan.targets.cpu.toolchain import Compiler, find_compiler

__all__ = ["CpuTarget", "build_kernel", "unsupported_reason"]

# Levels that multiply in bf16: the first f16 keys and values of prompts, the second products of many rows as well.
_FACTOR_ERRORS = {"x86-64-v4-bf16": 2**-9, "x86-64-v4-amx": 2**-9}
_MOST_DIMENSIONS = 8  # kMaxRank of templates/generic/view.h


def unsupported_reason(node: Node, values: Sequence[Value]) -> str:
    """Why the CPU target cannot run a node, "" if it can."""
    if node.op not in EMITTERS and node.op not in POINTWISE:
        return f"op {node.op!r} has no CPU kernel"
    touched = [values[value] for value in (*node.inputs, *node.outputs) if value >= 0]
    rank = max((len(value.shape) for value in touched), default=0)
    if rank > _MOST_DIMENSIONS:
        return f"{rank} dimensions; the kernels walk at most {_MOST_DIMENSIONS}"
    if any(dim == 0 for value in touched for dim in value.shape):
        return "a dimension of size 0"
    check = CHECKS.get(node.op)
    return check(node, values) if check else ""


def build_kernel(source: str, level: str, compiler: Compiler) -> bytes:
    """A library's bytes, from the cache where it was made before."""
    key = kernel_key(source, compiler.flags(level), compiler.identity)
    return cached_kernel(key, lambda: compiler.compile(source, level)).read_bytes()


class CpuTarget:
    """Compiles regions to one shared library per ISA level, with the clang of the ziglang wheel unless MIXPLAN_CC says otherwise."""

    name = "cpu"

    def capabilities(self) -> Capabilities:
        """Available where there is a compiler."""
        try:
            available = Support(True, find_compiler().identity)
        except MixplanError as error:
            available = Support(False, str(error))
        activations = ("f32", "bf16", "i8", "e4m3")
        return Capabilities(self.name, available, default_levels(), FORMAT_NAMES, activations, factor_errors=_FACTOR_ERRORS)

    def resolve_levels(self, wanted: Sequence[str]) -> tuple[str, ...]:
        """See Target.resolve_levels."""
        return resolve_levels(wanted)

    def supports(self, node: Node, values: Sequence[Value]) -> Support:
        """See Target.supports."""
        reason = unsupported_reason(node, values)
        return Support(not reason, reason)

    def cost_model(self) -> CostModel:
        """By the hardware record of this machine."""
        return cpu_costs(hardware())

    def compile(self, plan: Plan, region: Region, options: CompileOptions) -> CompiledRegion:
        """See Target.compile. Levels are compiled `options.jobs` at a time."""
        from mixplan.targets.cpu.render import render_region

        for node in plan.nodes[region.start : region.stop]:
            reason = unsupported_reason(node, plan.values)
            if reason:
                raise UnsupportedError(f"Node {node.name!r} ({node.op}) cannot be compiled for the CPU: {reason}.")
        levels = resolve_levels(options.levels)
        rendered = render_region(plan, region)
        compiler = find_compiler()
        with ThreadPoolExecutor(max_workers=options.jobs or allowed_cores()) as pool:
            libraries = list(pool.map(lambda level: build_kernel(rendered.source, level, compiler), levels))
        return CompiledRegion(
            dict(zip(levels, libraries, strict=True)),
            rendered.source,
            {
                "compiler": compiler.identity,
                "arena_bytes": rendered.arena_bytes,
                "functions": rendered.functions,
                "ops": rendered.ops,
                "levels": list(levels),
            },
        )
