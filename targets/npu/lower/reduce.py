"""Reductions over axes, and ops along one axis. None works along the step's tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mixplan.runtime.dtypes import DType
from mixplan.runtime.plan import Node, Value
from mixplan.targets.npu.lower.base import ARITHMETIC, Lowering, attrs_of, only_dtypes, static_axes
from mixplan.targets.npu.providers.base import ProviderRules

if TYPE_CHECKING:
    from mixplan.targets.npu.graph import Graph

__all__ = ["REDUCE"]

_REDUCTIONS = {"sum": "ReduceSum", "mean": "ReduceMean", "prod": "ReduceProd", "amax": "ReduceMax", "amin": "ReduceMin"}
_ALONG = {"softmax": "Softmax", "log_softmax": "LogSoftmax"}
_NUMBERS = only_dtypes(*ARITHMETIC)


def _reduction(kind: str) -> Callable[[Graph, Node], None]:
    def emit(g: Graph, node: Node) -> None:
        attrs = attrs_of(node)
        g.bind(node.outputs[0], g.reduce(kind, g.value(node.inputs[0]), attrs["axes"], keepdims=attrs["keepdims"]))

    return emit


def _along(kind: str) -> Callable[[Graph, Node], None]:
    return lambda g, node: g.bind(node.outputs[0], g.op(kind, g.value(node.inputs[0]), axis=attrs_of(node)["axis"]))


def _truth(kind: str) -> Callable[[Graph, Node], None]:
    def emit(g: Graph, node: Node) -> None:
        attrs, x = attrs_of(node), g.cast(g.value(node.inputs[0]), "i32")
        g.bind(node.outputs[0], g.cast(g.reduce(kind, x, attrs["axes"], keepdims=attrs["keepdims"]), "bool"))

    return emit


def _arg(kind: str) -> Callable[[Graph, Node], None]:
    def emit(g: Graph, node: Node) -> None:
        attrs, x = attrs_of(node), g.value(node.inputs[0])
        x = g.cast(x, "f64") if g.dtype(node.inputs[0]) is DType.i64 else x  # onnxruntime has none of i64
        g.bind(node.outputs[0], g.op(kind, x, axis=attrs["axis"], keepdims=int(attrs["keepdims"])))

    return emit


def _logsumexp(g: Graph, node: Node) -> None:
    attrs = attrs_of(node)
    g.bind(node.outputs[0], g.reduce("ReduceLogSumExp", g.value(node.inputs[0]), [attrs["axis"]], keepdims=attrs["keepdims"]))


def _cumsum(g: Graph, node: Node) -> None:
    g.bind(node.outputs[0], g.op("CumSum", g.value(node.inputs[0]), g.number(attrs_of(node)["axis"], "i64")))


def _check(node: Node, values: Sequence[Value], rules: ProviderRules) -> str:
    attrs = attrs_of(node)
    axes = attrs["axes"] if "axes" in attrs else (attrs["axis"],)
    if "axes" in attrs and not axes:
        return "a reduction over no axes"
    return _NUMBERS(node, values, rules) or static_axes(values, node.inputs[0], axes)


def _truth_check(node: Node, values: Sequence[Value], rules: ProviderRules) -> str:
    axes = attrs_of(node)["axes"]
    return static_axes(values, node.inputs[0], axes) if axes else "a reduction over no axes"


def _running_check(node: Node, values: Sequence[Value], rules: ProviderRules) -> str:
    """Padding comes after all tokens, so that no sum up to one of them has any of it."""
    return _NUMBERS(node, values, rules)


def _float_check(node: Node, values: Sequence[Value], rules: ProviderRules) -> str:
    return only_dtypes(DType.f32)(node, values, rules) or _check(node, values, rules)


REDUCE: dict[str, Lowering] = {
    **{name: Lowering(_reduction(kind), _check) for name, kind in _REDUCTIONS.items()},
    "all": Lowering(_truth("ReduceMin"), _truth_check),
    "any": Lowering(_truth("ReduceMax"), _truth_check),
    **{name: Lowering(_along(kind), _float_check) for name, kind in _ALONG.items()},
    "argmax": Lowering(_arg("ArgMax"), _check),
    "argmin": Lowering(_arg("ArgMin"), _check),
    "logsumexp": Lowering(_logsumexp, _float_check),
    "cumsum": Lowering(_cumsum, _running_check),
}
