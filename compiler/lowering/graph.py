"""The walk over a graph: every node becomes values of the plan, or one clear error."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch
from torch import fx

import mixplan.passes.fx_ops  # noqa: F401  registers the ops that graphs hold
from mixplan.compiler.constants import Call, Constants, Expr, Literal, Parameter
from mixplan.compiler.lowering.builder import Builder, Source
from mixplan.compiler.lowering.complex_pairs import COMPLEX_TABLE, PARTWISE
from mixplan.compiler.lowering.context import CannotLower, Context
from mixplan.compiler.lowering.decompose import decompose
from mixplan.compiler.lowering.inplace import copy_, functional, is_inplace, write_back
from mixplan.compiler.lowering.operands import ComplexPair, Operand, Ref, plan_dtype
from mixplan.compiler.lowering.prune import prune
from mixplan.compiler.lowering.symbols import Symbols
from mixplan.compiler.lowering.table import find
from mixplan.compiler.lowering.where import op_name, source_line
from mixplan.runtime.errors import UnsupportedError
from mixplan.runtime.plan import Node, Sym, Value

__all__ = ["Lowered", "lower"]

_IGNORED = ("_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range", "sym_constrain_range_for_size")


@dataclass
class Lowered:
    """Values, nodes and outputs of the plan; `sources` says where each stored constant's bytes come from."""

    values: list[Value]
    nodes: list[Node]
    outputs: tuple[int, ...]
    sources: dict[int, Source] = field(default_factory=dict)


def lower(graph: fx.GraphModule, constants: Constants, bound: Mapping[str, Expr] | None = None) -> Lowered:
    """Lower a graph of torch and mixplan ops. `bound` gives placeholders, by name, that are constants and not inputs of the step.

    Raises UnsupportedError naming the node, its op, the source line in the model and what is missing.
    """
    walk = _Walk(constants, bound or {})
    result = walk.run(graph, None)
    outputs = [result] if not isinstance(result, (list, tuple)) else list(result)
    refs = [walk.context.ref(output) for output in outputs]
    return Lowered(*prune(walk.build, [ref.index for ref in refs]))


class _Walk:
    def __init__(self, constants: Constants, bound: Mapping[str, Expr]) -> None:
        self.bound = bound
        self.build = Builder()
        self.symbols = Symbols()
        self.context = Context(self.build, self.symbols, constants)

    def run(self, graph: fx.GraphModule, given: Sequence[Operand] | None, outer: fx.Node | None = None) -> Operand:
        """Lower all nodes; `given` are the placeholders' operands, None at the top."""
        env: dict[fx.Node, Operand] = {}
        supplied = iter(given or ())
        for node in graph.graph.nodes:
            if node.op == "output":
                return fx.map_arg(node.args[0], lambda n: env[n])
            if node.op == "placeholder":
                env[node] = self._placeholder(node) if given is None else next(supplied)
            elif node.op == "get_attr":
                env[node] = _attribute(graph, node)
            elif node.op == "call_function":
                self._call(graph, env, node, outer or node)
            else:
                raise _unsupported(node, f"nodes of kind {node.op} have no lowering")
        raise AssertionError("a graph without an output")

    def _placeholder(self, node: fx.Node) -> Operand:
        if node.name in self.bound:
            return self.bound[node.name]
        val = node.meta["val"]
        self.symbols.learn(node.name, val)
        return self.build.input(node.name, plan_dtype(val.dtype), self.symbols.shape(val.shape))

    def _call(self, graph: fx.GraphModule, env: dict[fx.Node, Operand], node: fx.Node, outer: fx.Node) -> None:
        before = len(self.build.nodes)
        self.build.name = outer.name
        self.build.rule = str(outer.meta.get("rule") or "")
        self.context.fx = node
        try:
            env[node] = self._result(graph, env, node, outer)
        except CannotLower as reason:
            raise _unsupported(node, str(reason)) from None
        except ValueError as reason:
            raise _unsupported(node, str(reason)) from reason
        if node is outer:
            self._note_origin(env[node], before, str(node.meta.get("origin") or ""))

    def _note_origin(self, result: Operand, before: int, origin: str) -> None:
        """The node that makes the result, if it was made just now, computes what the captured node computed."""
        if not isinstance(result, Ref):
            return
        for i in range(before, len(self.build.nodes)):
            if self.build.nodes[i].outputs == (result.index,):
                self.build.nodes[i] = msgspec.structs.replace(self.build.nodes[i], origin=origin)

    def _result(self, graph: fx.GraphModule, env: dict[fx.Node, Operand], node: fx.Node, outer: fx.Node) -> Operand:
        name, overload = op_name(node)
        if name.rpartition(".")[2] in _IGNORED:
            return None
        val = node.meta.get("val")
        if isinstance(val, (torch.SymInt, int)) and not isinstance(val, bool):
            return self.symbols.dim(val)
        if node.target is operator.getitem:
            return self._item(fx.map_arg(node.args[0], lambda n: env[n]), node)
        if name in ("wrap_with_set_grad_enabled", "wrap_with_autocast"):
            return self._inlined(graph, env, node, outer)
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: env[n])
        if any(_unusable(a) for a in _leaves((args, kwargs))):
            raise CannotLower("an operand whose size or value depends on the data")
        if _constant(args, kwargs) and isinstance(node.target, torch._ops.OpOverload):
            target = functional(node.target) if is_inplace(node) and name != "aten.copy_" else node.target
            result = _fold(target, args, kwargs, val) if name != "aten.copy_" else args[1]
        elif name == "aten.copy_":
            result = copy_(self.context, *args)
        else:
            result = self._lowered(name.rstrip("_") if is_inplace(node) else name, overload, args, kwargs, node, outer, env)
        if is_inplace(node) and isinstance(node.args[0], fx.Node):
            write_back(self.context, env, node.args[0], result)
        return result

    def _lowered(
        self,
        name: str,
        overload: str,
        args: tuple[Operand, ...],
        kwargs: Mapping[str, Operand],
        node: fx.Node,
        outer: fx.Node,
        env: dict[fx.Node, Operand],
    ) -> Operand:
        leaves = list(_leaves((args, kwargs)))
        is_complex = any(isinstance(a, ComplexPair) or (isinstance(a, Expr) and a.dtype.is_complex) for a in leaves)
        if is_complex:
            if name in COMPLEX_TABLE:
                return COMPLEX_TABLE[name](self.context, *args, **kwargs)
            function = find(name, overload)
            if name in PARTWISE and function is not None:
                return self._partwise(function, args, kwargs)
            raise CannotLower(f"{name} of a complex tensor")
        function = find(name, overload)
        if function is not None:
            return function(self.context, *args, **kwargs)
        taken_apart = decompose(node) if isinstance(node.target, torch._ops.OpOverload) else None
        if taken_apart is None:
            raise CannotLower(f"the op {name}.{overload} has no lowering and torch has no decomposition of it")
        inner, inputs = taken_apart
        result = self.run(inner, [env[n] for n in inputs], outer)
        self.context.fx = node
        return result

    def _partwise(self, function: Callable[..., Operand], args: Any, kwargs: Any) -> Operand:
        from mixplan.compiler.lowering.complex_pairs import pair

        def part(which: str) -> Operand:
            def pick(value: Operand) -> Operand:
                if isinstance(value, (list, tuple)):
                    return type(value)(pick(v) for v in value)
                is_complex = isinstance(value, ComplexPair) or (isinstance(value, Expr) and value.dtype.is_complex)
                return getattr(pair(self.context, value), which) if is_complex else value

            return function(self.context, *pick(args), **{k: pick(v) for k, v in kwargs.items()})

        real, imag = part("real"), part("imag")
        if isinstance(real, list):
            return [ComplexPair(r, i) for r, i in zip(real, imag, strict=True)]
        return ComplexPair(real, imag)

    def _item(self, source: Operand, node: fx.Node) -> Operand:
        index = node.args[1]
        assert isinstance(index, int)
        item = source[index]
        if item is None:
            raise CannotLower("a statistic of a norm that inference does not need")
        return item

    def _inlined(self, graph: fx.GraphModule, env: dict[fx.Node, Operand], node: fx.Node, outer: fx.Node) -> Operand:
        """A submodule that only changes autograd or autocast state."""
        position = next(i for i, a in enumerate(node.args) if isinstance(a, fx.Node) and a.op == "get_attr" and a in env and env[a] is None)
        module = node.args[position]
        assert isinstance(module, fx.Node)
        inner = graph.get_submodule(str(module.target))
        assert isinstance(inner, fx.GraphModule)
        operands = fx.map_arg(node.args[position + 1 :], lambda n: env[n])
        return self.run(inner, operands, None)


def _attribute(graph: fx.GraphModule, node: fx.Node) -> Operand:
    """A parameter (on the meta device), a buffer, or None for a submodule."""
    value: Any = graph
    # Names may hold dots without there being submodules.
    for part in [str(node.target)] if hasattr(graph, str(node.target)) else str(node.target).split("."):
        value = getattr(value, part)
    if not isinstance(value, torch.Tensor):
        return None
    if value.device.type == "meta":
        return Parameter(str(node.target), tuple(value.shape))
    return Literal(value, str(node.target))


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in _leaves(item)]
    if isinstance(value, Mapping):
        return [leaf for item in value.values() for leaf in _leaves(item)]
    return [value]


def _unusable(value: Any) -> bool:
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def _constant(args: Any, kwargs: Any) -> bool:
    return not any(isinstance(leaf, (Ref, ComplexPair, Sym)) for leaf in _leaves((args, kwargs)))


def _fold(target: Any, args: Any, kwargs: Any, val: Any) -> Operand:
    """The call as a constant expression, or a list of them."""
    if isinstance(val, (list, tuple)):
        whole = Call(target, tuple(args), dict(kwargs), (), torch.float32)
        return [Call(operator.getitem, (whole, i), {}, tuple(int(d) for d in v.shape), v.dtype) for i, v in enumerate(val)]
    return Call(target, tuple(args), dict(kwargs), tuple(int(d) for d in val.shape), val.dtype)


def _unsupported(node: fx.Node, reason: str) -> UnsupportedError:
    name, overload = op_name(node)
    op = f"{name}.{overload}" if overload else name
    return UnsupportedError(
        f"Node {node.name} ({op}) cannot be lowered: {reason}.\n  in the model: {source_line(node)}",
        hint="Rewrite that line of the model, or add a lowering to mixplan/compiler/lowering.",
    )
