"""Small tools for editing a captured graph: insert a call with its value, evaluate a subgraph on numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor

__all__ = ["constant", "drop_dead", "evaluate", "insert"]

_MISSING = object()


def insert(before: fx.Node, target: Any, *args: Any) -> fx.Node:
    """Call `target` in front of `before`; the new node has its value and the source line of `before`."""
    with before.graph.inserting_before(before):
        node = before.graph.call_function(target, args)
    values = fx.node.map_arg(args, lambda n: n.meta["val"])
    with before.meta["val"].fake_mode:
        node.meta["val"] = target(*values)
    for key in ("stack_trace", "nn_module_stack"):
        if key in before.meta:
            node.meta[key] = before.meta[key]
    return node


def constant(before: fx.Node, name: str, value: Tensor) -> fx.Node:
    """A get_attr node for the real tensor `value`, in front of `before`; equal constants of one name share one node."""
    module = before.graph.owning_module
    assert module is not None
    for number in range(len(before.graph.nodes)):
        target = f"{name}_{number}"
        held = getattr(module, target, None)
        if held is None:
            module.register_buffer(target, value, persistent=False)
        elif not torch.equal(held, value):
            continue
        break
    existing = next((n for n in before.graph.nodes if n.op == "get_attr" and n.target == target), None)
    if existing is not None:
        return existing
    with before.graph.inserting_before(next(iter(before.graph.nodes))):
        node = before.graph.get_attr(target)
    node.meta["val"] = before.meta["val"].fake_mode.from_tensor(value)
    return node


def drop_dead(module: fx.GraphModule) -> None:
    """Erase nodes without users, in-place ops on tensors that nothing else reads included, and recompile."""
    module.graph.eliminate_dead_code()
    for node in reversed(list(module.graph.nodes)):
        if node.users or not isinstance(node.target, torch._ops.OpOverload):
            continue
        if torch.Tag.nondeterministic_seeded in node.target.tags:
            module.graph.erase_node(node)
            continue
        if not node.target._schema.is_mutable:
            continue
        changed = node.args[0]
        fresh = isinstance(changed, fx.Node) and isinstance(changed.target, torch._ops.OpOverload) and not _is_view(changed.target)
        if fresh and len(changed.users) == 1:
            module.graph.erase_node(node)
    module.graph.eliminate_dead_code()
    module.recompile()


def _is_view(target: torch._ops.OpOverload) -> bool:
    return any(argument.alias_info is not None for argument in target._schema.arguments)


def evaluate(module: fx.GraphModule, node: Any, tokens: int) -> Tensor | None:
    """The value of `node` for one sequence of `tokens` tokens, or None where it depends on token ids' embeddings or on weights.

    Values are kept on the module for as long as it is being edited.
    """
    if not isinstance(node, fx.Node):
        return torch.as_tensor(node)
    memo: dict[fx.Node, Any] = module.__dict__.setdefault("_evaluated", {})
    value = _evaluate(module, node, tokens, memo)
    return value if isinstance(value, Tensor) else torch.as_tensor(value) if isinstance(value, int | float) else None


def _evaluate(module: fx.GraphModule, node: fx.Node, tokens: int, memo: dict[fx.Node, Any]) -> Any:
    stack = [node]
    while stack:
        top = stack[-1]
        waiting = [n for n in top.all_input_nodes if n not in memo]
        if top in memo:
            stack.pop()
        elif waiting:
            stack.extend(waiting)
        else:
            memo[top] = _run(module, top, tokens, memo)
            stack.pop()
    return memo[node]


def _run(module: fx.GraphModule, node: fx.Node, tokens: int, memo: dict[fx.Node, Any]) -> Any:
    if node.op == "placeholder":
        line = torch.arange(tokens)[None]
        # 7 stands for any token that is not padding.
        made = {"token_ids": torch.full_like(line, 7), "position_ids": line, "sequence_lengths": torch.full_like(line, tokens)}
        return made.get(node.name, torch.arange(3))
    if node.op == "get_attr":
        value: Any = module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        return _MISSING if value.device.type == "meta" or isinstance(value, FakeTensor) else value
    if any(memo[n] is _MISSING for n in node.all_input_nodes) or node.op != "call_function":
        return _MISSING
    args, kwargs = (fx.node.map_arg(a, lambda n: memo[n]) for a in (node.args, node.kwargs))
    if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
        return _MISSING
    try:
        return node.target(*args, **kwargs)
    except (RuntimeError, IndexError, TypeError):
        return _MISSING
