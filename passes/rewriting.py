"""Editing a graph without losing what is known of its nodes.

Every call node carries in its meta: `val` (a fake tensor: shape and dtype), `origin` (name of the captured node that computes the same
value, or has it among its rows; absent where none does), `rule` (the rewrite rule that made it), `stack_trace` (the model's source line).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from mixplan.passes.decision import DECISION
from mixplan.passes.patterns import dims, dtype_of, is_constant, is_tensor, source_line
from mixplan.runtime.errors import InternalError, PassError

__all__ = ["VALUES", "Rewriter", "fake_mode_of", "hoist", "stamp_origins", "tensor_of"]


VALUES = "mixplan_values"
"""Key in the GraphModule's meta of the fake values computed so far, by call."""


def fake_mode_of(graph: fx.Graph) -> FakeTensorMode:
    """The mode that the graph's fake tensors belong to."""
    for node in graph.nodes:
        mode = getattr(node.meta.get("val"), "fake_mode", None)
        if mode is not None:
            return mode
    raise InternalError("The graph's nodes carry no fake tensors in meta['val']; capture must keep them.")


def tensor_of(module: fx.GraphModule, name: str) -> torch.Tensor:
    """The tensor that a get_attr node with target `name` reads. Names may hold dots without there being submodules."""
    found: Any = module
    if hasattr(module, name):
        found = getattr(module, name)
    else:
        for part in name.split("."):
            found = getattr(found, part)
    if not isinstance(found, torch.Tensor):
        raise InternalError(f"Attribute {name!r} of the graph is {type(found).__name__}, not a tensor.")
    return found


def stamp_origins(graph: fx.Graph) -> None:
    """Let every call node that carries no origin yet be its own."""
    for node in graph.nodes:
        if node.op == "call_function":
            node.meta.setdefault("origin", node.name)


def hoist(node: fx.Node, anchor: fx.Node) -> None:
    """Move a constant expression in front of `anchor`, its inputs first, where it does not stand there already."""
    if anchor < node:
        for source in node.all_input_nodes:
            hoist(source, anchor)
        anchor.prepend(node)


def _described(value: Any) -> Any:
    """A hashable description of an argument: nodes by shape and dtype of what they give, numbers with their type."""
    if isinstance(value, fx.Node):
        value = value.meta.get("val")
    if isinstance(value, torch.Tensor):
        return (dims(value), value.dtype, value.device)
    if isinstance(value, (list, tuple)):
        return tuple(_described(item) for item in value)
    if isinstance(value, dict):
        return tuple(sorted((name, _described(item)) for name, item in value.items()))
    return (type(value), str(value))


def _base_name(target: Any) -> str:
    """What nodes of a target are called: the op's name without namespace and overload."""
    packet = getattr(target, "overloadpacket", target)
    return str(getattr(packet, "__name__", packet))


class Rewriter:
    """Edits one graph in the name of one rule. New nodes go in front of `anchor`, which the caller sets to the node being rewritten."""

    def __init__(self, module: fx.GraphModule, rule: str) -> None:
        self.module = module
        self.graph = module.graph
        self.rule = rule
        self.anchor: fx.Node | None = None
        self._mode: FakeTensorMode | None = None

    @property
    def mode(self) -> FakeTensorMode:
        """The graph's fake mode."""
        if self._mode is None:
            self._mode = fake_mode_of(self.graph)
        return self._mode

    def call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """A new call in front of the anchor, with its fake value computed."""
        anchor = self.anchor
        if anchor is None or anchor._erased:
            raise InternalError(f"Rule {self.rule} makes a node without saying where, or in front of one that it erased.")
        value = self.evaluate(target, args, kwargs)
        with self.graph.inserting_before(anchor):
            node = self.graph.create_node("call_function", target, args, kwargs, name=_base_name(target))
        node.meta.update(val=value, rule=self.rule)
        if "stack_trace" in anchor.meta:
            node.meta["stack_trace"] = anchor.meta["stack_trace"]
        return node

    def evaluate(self, target: Any, args: Any, kwargs: Any) -> Any:
        """The fake value of a call on nodes' fake values."""

        def value_of(node: fx.Node) -> Any:
            if "val" not in node.meta:
                raise InternalError(f"Node {node.name} has no meta['val'].")
            return node.meta["val"]

        # Decoders repeat themselves layer by layer, and tracing through fake tensors is slow: equal calls share one fake value.
        known: dict[Any, Any] = self.module.meta.setdefault(VALUES, {})
        key = (target, _described(args), _described(kwargs))
        if key not in known:
            fake_args, fake_kwargs = fx.map_arg((args, kwargs), value_of)
            try:
                with self.mode, torch.no_grad():
                    known[key] = target(*fake_args, **fake_kwargs)
            except Exception as error:  # what an op raises on wrong arguments is its own affair
                at = "" if self.anchor is None else f" at node {self.anchor.name} ({source_line(self.anchor) or 'no source line'})"
                raise PassError(f"Rule {self.rule}{at} makes a call of {target} that fails: {type(error).__name__}: {error}") from error
        return known[key]

    def constant(self, tensor: torch.Tensor, prefix: str) -> fx.Node:
        """A get_attr node for a new tensor of the module, in front of the anchor."""
        tensor = tensor.detach().contiguous()
        index = 0
        while hasattr(self.module, f"{prefix}_{index}"):
            index += 1
        self.module.register_buffer(f"{prefix}_{index}", tensor)
        with self.graph.inserting_before(self.anchor):
            node = self.graph.get_attr(f"{prefix}_{index}")
        node.meta.update(val=self.mode.from_tensor(tensor, static_shapes=True), rule=self.rule)
        return node

    def replace(self, old: fx.Node, new: fx.Node, *, same_value: bool = True) -> None:
        """Let `new` stand for `old` everywhere, and erase what is dead then. Without `same_value` the numbers are laid out otherwise."""
        if same_value and is_tensor(old) and (dims(old) != dims(new) or dtype_of(old) != dtype_of(new)):
            raise InternalError(
                f"Rule {self.rule} replaces {old.name} {dtype_of(old)} {list(dims(old))} by {new.name} {dtype_of(new)} {list(dims(new))}"
                f" ({source_line(old) or 'no source line'})."
            )
        if same_value and new.op == "call_function":
            if "origin" in old.meta:
                new.meta.setdefault("origin", old.meta["origin"])
            if DECISION in old.meta and new.target == old.target:
                new.meta.setdefault(DECISION, old.meta[DECISION])
        old.replace_all_uses_with(new)
        self.erase_dead(old)

    def erase_dead(self, node: fx.Node) -> None:
        """Erase a node without users, and then its inputs that have none left."""
        pending = [node]
        while pending:
            dead = pending.pop()
            if dead.users or dead.op not in ("call_function", "get_attr") or dead._erased:
                continue
            inputs = dead.all_input_nodes
            self.graph.erase_node(dead)
            pending.extend(inputs)

    def hoist(self, *nodes: Any) -> None:
        """Move constant expressions in front of the anchor."""
        for node in nodes:
            if isinstance(node, fx.Node) and self.anchor is not None and is_constant(node):
                hoist(node, self.anchor)
