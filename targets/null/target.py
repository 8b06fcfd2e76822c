"""The null target: accepts everything and computes nothing. For measuring the overhead of the runtime, and as the smallest example."""

from __future__ import annotations

from collections.abc import Sequence

from mixplan.runtime.plan import Node, Plan, Region, Value
from mixplan.targets.base import Capabilities, CompiledRegion, CompileOptions, Support

__all__ = ["NullTarget"]


class NullTarget:
    """Its device returns zeros."""

    name = "null"

    def capabilities(self) -> Capabilities:
        """Everything, wrongly."""
        return Capabilities(self.name, Support(True), notes={"results": "all zeros"})

    def resolve_levels(self, wanted: Sequence[str]) -> tuple[str, ...]:
        """None: there is no native code to make."""
        return ()

    def supports(self, node: Node, values: Sequence[Value]) -> Support:
        """Always yes."""
        return Support(True)

    def compile(self, plan: Plan, region: Region, options: CompileOptions) -> CompiledRegion:
        """Nothing to make."""
        return CompiledRegion()
