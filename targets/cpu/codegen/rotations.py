"""Which rotary embeddings attention does itself, on its queries' and keys' way in: two ops and two barriers a layer less."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from mixplan.runtime.plan import Node, Plan, Region

__all__ = ["find_rotations"]


def find_rotations(plan: Plan, region: Region, users: Mapping[int, AbstractSet[int]]) -> dict[int, tuple[int, int]]:
    """For attention nodes whose q and k are both rotated, by the same angles and for nothing else: the two rope nodes. All are indices.

    users: the nodes that read each value, and -1 for a region output.
    """
    made = {value: index for index in range(region.start, region.stop) for value in plan.nodes[index].outputs}
    found = {}
    for index in range(region.start, region.stop):
        node = plan.nodes[index]
        if node.op != "attention":
            continue
        q, k = (made.get(value, -1) for value in node.inputs[:2])
        if _same_angles(plan.nodes, q, k) and all(users[value] == {index} for value in node.inputs[:2]):
            found[index] = (q, k)
    return found


def _same_angles(nodes: Sequence[Node], q: int, k: int) -> bool:
    if q < 0 or k < 0 or q == k or nodes[q].op != "rope" or nodes[k].op != "rope":
        return False
    return nodes[q].inputs[1:] == nodes[k].inputs[1:] and nodes[q].attrs == nodes[k].attrs
