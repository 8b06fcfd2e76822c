"""The backend: linear layers and embeddings of a captured module get the rounding that a plan would give them.

In eval mode weights and inputs are rounded; while the layer's module is training, everything is computed as it stands, so that gradients
are exact. torch does not compile again where only `training` changes, so the layers look at it in each call.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, fx, nn
from torch.nn import functional

from mixplan.compiler.torch_backend.options import parse_backend_options
from mixplan.compiler.torch_backend.rounding import WeightCache, rounded_input
from mixplan.passes.precision.schemes import Scheme
from mixplan.runtime.errors import UnsupportedError

__all__ = ["CACHE", "mixplan_backend"]

CACHE = WeightCache()
"""Weights of all modules compiled in this process."""

_LAYERS = (nn.Linear, nn.Embedding)


def mixplan_backend(graph: fx.GraphModule, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None) -> Callable[..., Any]:
    """`torch.compile(module, backend="mixplan", options={...})`.

    Options as those of `mixplan compile`: scheme, overrides, group_size, symmetric; or plan, the path of a plan of this model, whose
    decisions are taken; inputs: second moments of the layers' inputs, by which a plan rounds weights of fewer than 8 bits. torch reports
    what they raise (OptionError, UnsupportedError) as the cause of its own BackendCompilerFailed.
    """
    parsed = parse_backend_options(options)
    nodes = [node for node in graph.graph.nodes if node.op == "placeholder"]
    weights = {node: value for node, value in zip(nodes, inputs, strict=True) if isinstance(value, nn.Parameter)}
    users = [node for node in graph.graph.nodes if _is_layer(node) and node.args[1] in weights]
    if not users:
        return graph.forward
    root = _root(list(weights.values()))
    layers, names = _layers(root)
    schemes = parsed.schemes(layers, _heads(root, users, weights, names))
    for number, node in enumerate(users):
        name = names.get(id(weights[node.args[1]]))
        if name is not None:
            owner = root.get_submodule(name)
            made = _Rounded(node.target, owner, name, schemes[name], parsed.inputs.get(name))
            graph.add_submodule(f"mixplan_{number}", made)
            with graph.graph.inserting_after(node):
                new = graph.graph.call_module(f"mixplan_{number}", node.args, node.kwargs)
            node.replace_all_uses_with(new)
            new.meta = dict(node.meta)
            graph.graph.erase_node(node)
    graph.recompile()
    return graph.forward


class _Rounded(nn.Module):
    """`linear(x, weight, bias)` or `embedding(ids, weight, ...)`, rounded unless `owner` is training."""

    def __init__(self, function: Any, owner: nn.Module, name: str, scheme: Scheme, moments: Tensor | None) -> None:
        super().__init__()
        self._function, self._name, self._scheme, self._moments = function, name, scheme, moments
        self._owner = weakref.ref(owner)

    def forward(self, x: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Any:
        owner = self._owner()
        if owner is not None and owner.training:
            return self._function(x, weight, *args, **kwargs)
        if self._function is not functional.embedding:
            x = rounded_input(x, self._scheme)
        return self._function(x, CACHE.rounded(weight, self._scheme, self._name, self._moments), *args, **kwargs)


def _is_layer(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target in (functional.linear, functional.embedding) and len(node.args) > 1


def _root(weights: Sequence[nn.Parameter]) -> nn.Module:
    """The module whose forward is being compiled: that among the frame's variables which owns all these weights."""
    for value in _captured_variables():
        candidates = value if isinstance(value, list | tuple) else [value]
        for module in candidates:
            if isinstance(module, nn.Module):
                owned = {id(parameter) for parameter in module.parameters()}
                if all(id(weight) in owned for weight in weights):
                    return module
    raise UnsupportedError(
        "The compiled function has weights that belong to none of its own modules, so its layers have no names.",
        hint="Compile a module: torch.compile(model, backend='mixplan').",
    )


def _captured_variables() -> list[Any]:
    """Local variables of the function that torch is capturing, from the capture that called us."""
    from torch._dynamo.output_graph import OutputGraph

    frame: Any = sys._getframe()
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, OutputGraph):
            return list(caller.local_scope.values())
        frame = frame.f_back
    return []


def _layers(root: nn.Module) -> tuple[dict[str, tuple[str, ...]], dict[int, str]]:
    """Layers with the other names of their weights, and the layer of each weight by the weight's id."""
    names: dict[int, str] = {}
    others: dict[str, list[str]] = {}
    for name, module in root.named_modules():
        if isinstance(module, _LAYERS):
            first = names.setdefault(id(module.weight), name)
            others.setdefault(first, [])
            if first != name:
                others[first].append(name)
    return {name: tuple(same) for name, same in others.items()}, names


def _heads(root: nn.Module, users: Sequence[fx.Node], weights: Mapping[fx.Node, nn.Parameter], names: Mapping[int, str]) -> set[str]:
    """Layers that make the logits: what a transformers model says, else those whose output reaches the graph's through no other layer."""
    known = getattr(root, "get_output_embeddings", None)
    head = known() if known is not None else None
    if isinstance(head, nn.Linear):
        return {names[id(head.weight)]}
    found: set[str] = set()
    pending, seen = list(users[0].graph.output_node().all_input_nodes), set()
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        if node in users:
            found.add(names.get(id(weights[node.args[1]]), ""))
        else:
            pending.extend(node.all_input_nodes)
    return found
