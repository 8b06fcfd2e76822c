"""Which nodes become one loop: chains of pointwise ops, found alike for every target, which only has to print them.

A chain is one loop over the elements of one shape. It reads each value from outside once, broadcast where that is smaller, holds its own
results in registers, and stores those that are read outside of it: by other nodes, through views, or by other regions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field

from mixplan.runtime.plan import Node, Plan, Region, Shape

__all__ = ["Chain", "ChainRules", "find_chains", "readers"]


@dataclass(frozen=True)
class Chain:
    """One loop.

    nodes: of the plan, in order. shape: of the loop; results of a smaller one are computed for every element, and leave no chain. outputs:
    values that are stored, in the order in which they are made. views: nodes to go on with once they are: other views of the outputs.
    """

    nodes: tuple[int, ...]
    shape: Shape
    outputs: tuple[int, ...]
    views: tuple[int, ...] = ()

    def inputs(self, plan: Plan) -> tuple[int, ...]:
        """Values from outside, in the order in which they are first read."""
        made = {value for index in self.nodes for value in plan.nodes[index].outputs}
        read = (value for index in self.nodes for value in plan.nodes[index].inputs)
        return tuple(dict.fromkeys(value for value in read if value not in made))


def _reads(plan: Plan, index: int) -> Set[int]:
    return {value for value in plan.nodes[index].inputs if value >= 0}


@dataclass(frozen=True)
class ChainRules:
    """What a target makes chains of.

    pointwise: whether a node can be part of one. views: ops that only see values otherwise. reads(plan, index): the values that must stand
    in memory before a node runs; more than its inputs where it does another node's work as well. elsewhere: nodes that others do the work
    of. longest: nodes of a chain. widens: whether results of a smaller shape, read by nothing else, are computed anew for each element
    that they are broadcast to.
    """

    pointwise: Callable[[Node], bool]
    views: Set[str]
    reads: Callable[[Plan, int], Set[int]] = _reads
    elsewhere: Set[int] = frozenset()
    longest: int = 64
    widens: bool = False


@dataclass
class _Open:
    """A chain that may still grow, and the views of its results that wait for them."""

    nodes: list[int] = field(default_factory=list)
    values: set[int] = field(default_factory=set)
    views: list[int] = field(default_factory=list)
    viewed: set[int] = field(default_factory=set)
    shape: Shape = ()


def readers(plan: Plan, region: Region) -> dict[int, set[int]]:
    """For each value that the region reads or makes, the nodes that read it; an output of the region is also read by node -1."""
    users: dict[int, set[int]] = {value: {-1} for value in region.outputs}
    for index in range(region.start, region.stop):
        for value in plan.nodes[index].inputs:
            users.setdefault(value, set()).add(index)
    return users


def find_chains(plan: Plan, region: Region, rules: ChainRules) -> Iterator[int | Chain]:
    """The region's work in an order in which it can be done: nodes by their index in the plan, and chains of them.

    A chain stays open until something needs its results, so that nodes that stand between its own do not end it.
    """
    users = readers(plan, region)
    chain = _Open()
    for index in range(region.start, region.stop):
        node = plan.nodes[index]
        if index in rules.elsewhere:
            continue
        reads = rules.reads(plan, index)
        if node.op in rules.views and reads & (chain.values | chain.viewed):
            chain.views.append(index)
            chain.viewed.update(node.outputs)
            continue
        if rules.pointwise(node):
            shape = plan.values[node.outputs[0]].shape
            if chain.nodes and not _joins(chain, index, reads, shape, users, rules):
                # A node of another shape that does not need the chain could be emitted at once; as a chain of its own it may still grow.
                yield _closed(plan, chain, users)
                chain = _Open()
            chain.nodes.append(index)
            chain.values.update(node.outputs)
            chain.shape = shape
            continue
        if chain.nodes and reads & (chain.values | chain.viewed):
            yield _closed(plan, chain, users)
            chain = _Open()
        yield index
    if chain.nodes:
        yield _closed(plan, chain, users)


def _joins(chain: _Open, index: int, reads: Set[int], shape: Shape, users: Mapping[int, Set[int]], rules: ChainRules) -> bool:
    if reads & chain.viewed or len(chain.nodes) >= rules.longest:
        return False
    if shape == chain.shape:
        return True
    inside = {*chain.nodes, index}
    # Of a smaller result, every element of the larger loop would store the same.
    return rules.widens and _broadcasts(chain.shape, shape) and all(users.get(value, {-1}) <= inside for value in chain.values)


def _broadcasts(small: Shape, large: Shape) -> bool:
    """Whether `small` becomes `large` by numpy's rules."""
    if len(small) > len(large):
        return False
    return all(a in (1, b) for a, b in zip(small, large[len(large) - len(small) :], strict=True))


def _closed(plan: Plan, chain: _Open, users: Mapping[int, Set[int]]) -> Chain:
    inside = set(chain.nodes)
    made = [value for index in chain.nodes for value in plan.nodes[index].outputs]
    outputs = tuple(value for value in made if users.get(value, set()) - inside)
    # A chain that nobody reads still needs a place for its last result.
    return Chain(tuple(chain.nodes), chain.shape, outputs or (made[-1],), tuple(chain.views))
