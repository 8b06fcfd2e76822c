"""The written spec of a legal graph, checked before the first pass and after every pass that changed something.

At every level
- nodes are placeholders, get_attr of tensors, calls of ATen or mixplan ops (or Python's arithmetic on sizes), and one output of one node;
- a call's `meta["val"]` says what it gives; it is None only for checks, which a canonical graph does not hold.

Canonical adds
- nothing is changed in place, nothing is checked at run time, nothing is random;
- shapes change by reshape, permute, expand, slice and cat; linear layers, embeddings and attention are mixplan ops, attention token-major.

Decided adds
- every node that reads a weight in a format carries a `LayerDecision`.
"""

from __future__ import annotations

import operator
from enum import IntEnum
from typing import Any

import torch
from torch import fx

from mixplan.passes import fx_ops
from mixplan.passes.decision import decision_of
from mixplan.passes.patterns import source_line
from mixplan.runtime.errors import PassError, UnsupportedError

__all__ = ["WEIGHT_OPS", "Level", "check_graph"]


class Level(IntEnum):
    """How much is promised of a graph."""

    captured = 0
    canonical = 1
    decided = 2


WEIGHT_OPS = (
    fx_ops.LINEAR,
    fx_ops.GATED_LINEAR,
    fx_ops.LINEAR_Q,
    fx_ops.GATED_LINEAR_Q,
    fx_ops.EMBEDDING,
    fx_ops.GROUPED_LINEAR,
)
_PLAIN = (operator.getitem, operator.add, operator.sub, operator.mul, operator.floordiv, operator.neg, operator.mod, operator.pow)
_PLAIN_NAMES = ("sym_min", "sym_max", "sym_not", "sym_float", "sym_int", "eq", "ne", "lt", "le", "gt", "ge", "truediv", "and_", "or_")
_NAMESPACES = ("aten", "mixplan", "prims")
_NOT_CANONICAL = frozenset(
    """
    view _unsafe_view flatten unflatten view_as reshape_as transpose t numpy_T mT movedim moveaxis swapaxes
    split split_with_sizes chunk unbind narrow stack alias detach clone contiguous dropout lift_fresh lift_fresh_copy
    addmm mm linear embedding _assert_tensor_metadata _assert_scalar _assert_async
    """.split()
)


def check_graph(graph: fx.GraphModule, level: Level, where: str, *, reaching: bool = False) -> None:
    """Raise PassError, naming `where` and the node, if the graph breaks the spec at `level`.

    With `reaching`, the level is new to the graph; a node that could not be brought to it is the model's, and gives UnsupportedError.
    """
    try:
        graph.graph.lint()
    except Exception as error:  # lint raises RuntimeError, AssertionError and others
        raise PassError(f"The graph {where} is malformed: {error}") from error
    outputs = [node for node in graph.graph.nodes if node.op == "output"]
    if len(outputs) != 1 or not isinstance(outputs[0].args[0], fx.Node):
        raise PassError(f"The graph {where} must have one output of one node.")
    for node in graph.graph.nodes:
        problem = _problem(node, level)
        if problem:
            source = source_line(node)
            if reaching and _problem(node, Level.captured) is None:
                raise UnsupportedError(f"Node {node.name} ({source or 'no source line'}) has no canonical form: {problem}.")
            raise PassError(f"The graph {where} breaks the spec at node {node.name}: {problem}." + (f" Source: {source}" if source else ""))


def _problem(node: fx.Node, level: Level) -> str | None:
    if node.op in ("placeholder", "output"):
        return None
    if node.op == "get_attr":
        return None if isinstance(node.meta.get("val"), torch.Tensor) else "meta['val'] is not a tensor"
    if node.op != "call_function":
        return f"a node of kind {node.op} is not allowed"
    namespace = getattr(node.target, "namespace", None)
    if namespace not in _NAMESPACES and not _is_plain(node.target):
        return f"target {node.target} is neither an ATen nor a mixplan op"
    if "val" not in node.meta:
        return "meta['val'] is missing"
    if level >= Level.canonical and namespace is not None:
        problem = _not_canonical(node)
        if problem:
            return problem
    if level >= Level.decided and node.target in WEIGHT_OPS and decision_of(node) is None:
        return "it reads a weight, but carries no LayerDecision"
    return None


def _is_plain(target: Any) -> bool:
    return target in _PLAIN or getattr(target, "__name__", "") in _PLAIN_NAMES


def _not_canonical(node: fx.Node) -> str | None:
    target = node.target
    if target is fx_ops.ATTENTION:
        return "attention must be token-major here"
    if target.namespace == "mixplan":
        return None
    name = target._schema.name.removeprefix("aten::")
    if target._schema.is_mutable:
        return f"{target} changes its argument in place"
    if name in _NOT_CANONICAL:
        return f"{target} is not part of the canonical form"
    if torch.Tag.nondeterministic_seeded in target.tags and name not in _ONLY_IN_TRAINING:
        return f"{target} is random"
    return None


_ONLY_IN_TRAINING = ("scaled_dot_product_attention", "_safe_softmax")
