"""The compile half: says which nodes the toy runs, and turns a region of them into a program for it."""

import json
from collections.abc import Sequence

from mixplan.runtime.dtypes import DType
from mixplan.runtime.errors import OptionError
from mixplan.runtime.plan import Node, Plan, Region, Value
from mixplan.targets.base import Capabilities, CompiledRegion, CompileOptions, Support

LEVEL = "toy1"  # its only instruction set


class ToyTarget:
    name = "toy"

    def capabilities(self) -> Capabilities:
        return Capabilities(self.name, Support(True), levels=(LEVEL,), formats=("f32",), activations=("f32",))

    def resolve_levels(self, wanted: Sequence[str]) -> tuple[str, ...]:
        for name in wanted:
            if name not in (LEVEL, "native"):
                raise OptionError(f"the toy has no level {name!r}.", hint=f"Levels: {LEVEL}, or native for the same.")
        return (LEVEL,)

    def supports(self, node: Node, values: Sequence[Value]) -> Support:
        """Products of f32 weights and RMS norms; the reason of a no stands in the plan beside what another target then runs."""
        if node.op not in ("linear", "rms_norm"):
            return Support(False, f"the toy has no {node.op}")
        if node.op == "linear" and (node.attrs["format"] != "f32" or node.attrs.get("activation_dtype", "f32") != "f32"):
            return Support(False, f"the toy multiplies f32 by f32 alone; the weight is {node.attrs['format']}")
        other = {values[index].dtype for index in (*node.inputs, *node.outputs) if index >= 0} - {DType.f32}
        return Support(not other, f"the toy computes in f32, not {', '.join(kind.value for kind in other)}")

    def compile(self, plan: Plan, region: Region, options: CompileOptions) -> CompiledRegion:
        """A program: for each node its op, where its inputs lie, where its output goes, and its numbers."""
        nodes = plan.nodes[region.start : region.stop]
        program = [{"op": n.op, "inputs": n.inputs, "output": n.outputs[0], "attrs": n.attrs} for n in nodes]
        return CompiledRegion({LEVEL: json.dumps(program, indent=1).encode()}, metadata={"ops": len(program)})
