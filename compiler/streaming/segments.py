"""Where a graph is cut, so that only a bounded part of its weights is in memory at once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import fx

from mixplan.passes.fx_ops import EMBEDDING
from mixplan.passes.patterns import aten, is_constant, mark_constants
from mixplan.passes.rewriting import tensor_of

__all__ = ["Segment", "cut", "parameter_bytes", "segment_limit", "table_of"]

# Sizes at which live values are compared; only their order matters.
_TOKENS = 256
_SLACK = 1.25
_LEAST, _MOST, _PARTS = 128 << 20, 1 << 30, 32


@dataclass(frozen=True)
class Segment:
    """Consecutive nodes that are no constants, the constants that they read, and what later segments need of all that is known by then."""

    nodes: tuple[fx.Node, ...]
    constants: tuple[fx.Node, ...]
    keep: frozenset[fx.Node]


def segment_limit(module: fx.GraphModule) -> int:
    """Weight bytes of a segment by default: a 32nd of the model in f32 (about a layer of a large one), at least 128 MiB, at most 1 GiB."""
    total = sum(parameter_bytes(module, node) for node in module.graph.nodes if node.op == "get_attr")
    return min(max(total // _PARTS, _LEAST), _MOST)


def table_of(node: fx.Node) -> fx.Node | None:
    """The table that a lookup reads rows of, where it is a parameter as it stands."""
    at = {aten.embedding.default: 0, EMBEDDING: 1}.get(node.target) if node.op == "call_function" else None
    if at is None:
        return None
    table: fx.Node = node.args[at]
    return table if table.op == "get_attr" else None


def parameter_bytes(module: fx.GraphModule, node: fx.Node) -> int:
    """Bytes in f32 of the parameter that a get_attr node stands for; 0 for buffers, which the graph itself holds."""
    tensor = tensor_of(module, str(node.target))
    return int(tensor.numel()) * 4 if tensor.device.type == "meta" else 0


def cut(module: fx.GraphModule, limit: int, last: fx.Node | None = None) -> list[Segment]:
    """Segments that read at most `limit` bytes of weights each, or one node's if that alone reads more; the graph's nodes up to `last`.

    Cuts are where the fewest bytes are alive. Rows of a table are looked up as they are needed, and count nothing.
    """
    mark_constants(module.graph)
    nodes = [node for node in module.graph.nodes if node.op not in ("placeholder", "output") and not is_constant(node)]
    if last is not None:
        nodes = nodes[: nodes.index(last) + 1]
    outputs = set(module.graph.output_node().all_input_nodes)
    place = {node: index for index, node in enumerate(nodes)}
    # A value lives to its last user; what the graph gives back, to the end of its own segment at least.
    final = {node: max((place.get(user, -1) for user in node.users), default=-1) for node in nodes}
    alive = _alive(nodes, final)
    reads_of = [_reads(module, node) for node in nodes]
    bounds, start, held = [0], 0, dict[fx.Node, int]()
    for index, reads in enumerate(reads_of):
        if index > start and sum({**held, **reads}.values()) > limit and any(leaf not in held for leaf in reads):
            least = min(alive[start:index])
            start = max(at for at in range(start + 1, index + 1) if alive[at - 1] <= least * _SLACK)
            bounds.append(start)
            held = {leaf: size for one in reads_of[start:index] for leaf, size in one.items()}
        held |= reads
    bounds.append(len(nodes))
    segments = []
    for low, high in itertools.pairwise(bounds):
        constants = dict.fromkeys(constant for node in nodes[low:high] for constant in _constants(node))
        keep = frozenset(node for node in nodes[:high] if final[node] >= high) | (outputs & set(nodes[low:high]))
        segments.append(Segment(tuple(nodes[low:high]), tuple(constants), keep))
    return segments


def _constants(node: fx.Node) -> Iterator[fx.Node]:
    """Constants that a node itself reads, but for a table that is looked up."""
    table = table_of(node)
    yield from (source for source in node.all_input_nodes if is_constant(source) and source is not table)


def _reads(module: fx.GraphModule, node: fx.Node) -> dict[fx.Node, int]:
    """Bytes of the parameters that a node's constants are made of."""
    return {leaf: parameter_bytes(module, leaf) for constant in _constants(node) for leaf in _leaves(constant)}


def _leaves(constant: fx.Node) -> Iterator[fx.Node]:
    if constant.op == "get_attr":
        yield constant
    for source in constant.all_input_nodes:
        yield from _leaves(source)


def _alive(nodes: Sequence[fx.Node], final: dict[fx.Node, int]) -> list[int]:
    """Bytes that wait after each node."""
    change = [0] * (len(nodes) + 1)
    for index, node in enumerate(nodes):
        if final[node] > index:
            size = _size(node)
            change[index] += size
            change[final[node]] -= size
    total, alive = 0, []
    for delta in change[:-1]:
        total += delta
        alive.append(total)
    return alive


def _size(node: fx.Node) -> int:
    shape = getattr(node.meta.get("val"), "shape", ())
    return math.prod(size if isinstance(size, int) else _TOKENS for size in shape) * 4
