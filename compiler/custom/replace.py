"""A kernel inside a model: the pass that inlines it in the place of other calls."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from mixplan.compiler.custom.trace import ALLOWED, quiet_torch
from mixplan.passes.base import PassContext, PassResult
from mixplan.passes.patterns import dims, same_dims
from mixplan.passes.rewriting import Rewriter
from mixplan.passes.rules import SimpleRule, apply_rules
from mixplan.runtime.errors import MixplanError, OptionError, PassError, UnsupportedError

if TYPE_CHECKING:
    from mixplan.compiler.custom.kernel import Kernel

__all__ = ["Replacement"]


class Replacement:
    """A pass. Every matching call becomes the ops of the kernel, which later passes fuse and targets compile like any others."""

    def __init__(
        self,
        kernel: Kernel,
        targets: Sequence[Any],
        match: Callable[[fx.Node], Sequence[Any] | None] | None,
        numbers: Mapping[str, float],
        name: str,
    ) -> None:
        if not targets:
            raise OptionError(f"Kernel {kernel.name} replaces nothing: name the ops, such as torch.ops.aten.silu.default.")
        for one in targets:
            if not isinstance(one, torch._ops.OpOverload) and one is not operator.getitem:
                raise OptionError(
                    f"Kernel {kernel.name} cannot replace {one!r:.60}, which is no op of a model's graph.",
                    hint="Allowed are overloads of torch's and mixplan's ops, such as torch.ops.aten.silu.default, and operator.getitem.",
                )
        self.__name__ = name
        self._kernel, self._targets, self._match, self._numbers = kernel, tuple(targets), match, dict(numbers)

    def __call__(self, graph: fx.GraphModule, context: PassContext) -> PassResult:
        """Rewrite the graph."""
        rule = SimpleRule(self.__name__, self._targets, self._rewrite, same_value=False)
        matches = apply_rules(graph, context, [rule])
        return PassResult(graph, matches > 0, matches)

    def _rewrite(self, node: fx.Node, edit: Rewriter) -> fx.Node | None:
        if node.meta.get("rule") == self.__name__:
            return None  # a call that the kernel itself makes
        count = len(self._kernel.signature.tensors)
        given = node.args[:count] if self._match is None else self._match(node)
        if given is None:
            return None
        if len(given) != count or not all(isinstance(one, fx.Node) for one in given):
            raise PassError(
                f"{self.__name__} at node {node.name}: the match gives {list(given)}; kernel {self._kernel.name} takes {count} nodes."
            )
        return _inline(self._kernel, self._numbers, node, [one for one in given if isinstance(one, fx.Node)], edit)


def _inline(kernel: Kernel, numbers: Mapping[str, float], node: fx.Node, given: Sequence[fx.Node], edit: Rewriter) -> fx.Node:
    bound = kernel.signature.bind(kernel.name, given, numbers)
    try:
        with edit.mode, quiet_torch():
            traced = make_fx(lambda *tensors: kernel.function(*tensors, **bound))(*(one.meta["val"] for one in given))
    except MixplanError:
        raise
    except Exception as error:  # whatever the function raises on these shapes
        raise UnsupportedError(f"Kernel {kernel.name} in the place of node {node.name}: {error}", hint=ALLOWED) from error
    made: dict[fx.Node, Any] = dict(zip((one for one in traced.graph.nodes if one.op == "placeholder"), given, strict=True))
    for one in traced.graph.nodes:
        if one.op == "call_function":
            args, kwargs = fx.map_arg((one.args, one.kwargs), lambda source: made[source])
            made[one] = edit.call(one.target, *args, **kwargs)
        elif one.op == "get_attr":
            made[one] = edit.constant(getattr(traced, str(one.target)), f"{kernel.name}_constant")
        elif one.op == "output":
            result = one.args[0]
            if not isinstance(result, fx.Node):
                raise PassError(f"Kernel {kernel.name} gives {result!r}; in the place of node {node.name} it must give one tensor.")
            found = made[result]
            if not same_dims(found, node):
                raise PassError(
                    f"Kernel {kernel.name} gives {list(dims(found))} in the place of node {node.name}, which gives {list(dims(node))}."
                )
            assert isinstance(found, fx.Node)
            return found
    raise AssertionError("a graph without an output")
