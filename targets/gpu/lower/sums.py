"""Which additions a norm does on its way in: those of the residual stream, where no chain has the operands in registers."""

from __future__ import annotations

from collections.abc import Mapping, Set

from mixplan.runtime.dtypes import DType
from mixplan.runtime.plan import Plan, Region
from mixplan.targets.chains import readers
from mixplan.targets.gpu.lower.chain import POINTWISE

__all__ = ["find_sums"]

_NORMS = frozenset({"rms_norm", "layer_norm", "rms_norm_quant", "layer_norm_quant"})


def find_sums(plan: Plan, region: Region) -> dict[int, int]:
    """For norms that add first: the node that is the addition. Both are indices; what else reads the sum comes after the norm."""
    users = readers(plan, region)
    made = {value: index for index in range(region.start, region.stop) for value in plan.nodes[index].outputs}
    found: dict[int, int] = {}
    for index in range(region.start, region.stop):
        node = plan.nodes[index]
        if node.op not in _NORMS:
            continue
        add = made.get(node.inputs[0], -1)
        if add < 0 or plan.nodes[add].op != "add" or add in found.values():
            continue
        total = plan.values[node.inputs[0]]
        alike = all(plan.values[value].shape == total.shape and plan.values[value].fill is None for value in plan.nodes[add].inputs)
        first = min(users[node.inputs[0]] - {-1}) == index
        chained = any(_in_registers(plan, value, made, users, add) for value in plan.nodes[add].inputs)
        if total.dtype is DType.f32 and alike and first and not chained:
            found[index] = add
    return found


def _in_registers(plan: Plan, value: int, made: Mapping[int, int], users: Mapping[int, Set[int]], add: int) -> bool:
    """Whether a chain makes the value for the addition alone, and would hold it in registers."""
    return value in made and plan.nodes[made[value]].op in POINTWISE and users[value] == {add}
