"""The reference target: every op, in numpy, nothing to compile. Always the last choice."""

from __future__ import annotations

from collections.abc import Sequence

from mixplan.runtime.formats import FORMAT_NAMES
from mixplan.runtime.plan import Node, Plan, Region, Value
from mixplan.targets.base import Capabilities, CompiledRegion, CompileOptions, Support

__all__ = ["ReferenceTarget"]


class ReferenceTarget:
    """Runs whatever has a numpy reference."""

    name = "reference"

    def capabilities(self) -> Capabilities:
        """Everything, slowly."""
        return Capabilities(self.name, Support(True), formats=FORMAT_NAMES, activations=("f32", "bf16", "i8"))

    def resolve_levels(self, wanted: Sequence[str]) -> tuple[str, ...]:
        """None: there is no native code to make."""
        return ()

    def supports(self, node: Node, values: Sequence[Value]) -> Support:
        """Yes to every op of the op table."""
        from mixplan.runtime.ops.table import OPS

        return Support(True) if node.op in OPS else Support(False, f"op {node.op!r} is not in the op table")

    def compile(self, plan: Plan, region: Region, options: CompileOptions) -> CompiledRegion:
        """Nothing to make: the device interprets the plan."""
        return CompiledRegion()
