"""A graph as text: one line a node, with shapes in the step's own symbols. Golden tests compare this text."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import fx

from mixplan.passes.decision import decision_of

__all__ = ["graph_text", "step_symbols"]

_DTYPES = {
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "bool",
}


def step_symbols(graph: fx.Graph) -> dict[str, str]:
    """Names of the export's symbols in the step's words: T for token_ids' length, R for logit_rows'."""
    symbols: dict[str, str] = {}
    for node in graph.nodes:
        value = node.meta.get("val")
        if node.op == "placeholder" and isinstance(value, torch.Tensor):
            for size in value.shape:
                if not isinstance(size, int):
                    symbols.setdefault(str(size.node.expr), "R" if node.name == "logit_rows" else "T")
    return symbols


def graph_text(graph: fx.Graph, *, constants: bool = True) -> str:
    """Every node as `name: dtype[shape] = op(arguments)  # decision; rule`. Without `constants`, get_attr nodes are left out."""
    symbols = step_symbols(graph)
    lines = []
    for node in graph.nodes:
        if node.op == "get_attr" and not constants:
            continue
        lines.append(_line(node, symbols))
    return "\n".join(lines) + "\n"


def _line(node: fx.Node, symbols: dict[str, str]) -> str:
    if node.op == "output":
        return f"return {_argument(node.args[0])}"
    value = _value(node.meta.get("val"), symbols)
    if node.op == "placeholder":
        return f"{node.name}: {value} = input"
    if node.op == "get_attr":
        return f"{node.name}: {value} = tensor {node.target}"
    arguments = [_argument(argument) for argument in node.args]
    arguments += [f"{name}={_argument(argument)}" for name, argument in node.kwargs.items()]
    decision = decision_of(node)
    notes = [str(decision.scheme)] if decision is not None else []
    notes += [node.meta["rule"]] if "rule" in node.meta else []
    note = f"  # {'; '.join(notes)}" if notes else ""
    return f"{node.name}: {value} = {_target(node.target)}({', '.join(arguments)}){note}"


def _target(target: Any) -> str:
    if isinstance(target, torch._ops.OpOverload):
        return str(target).removesuffix(".default")
    return getattr(target, "__name__", str(target))


def _argument(argument: Any) -> str:
    if isinstance(argument, (list, tuple)):
        return "[" + ", ".join(_argument(item) for item in argument) + "]"
    return str(argument)


def _value(value: Any, symbols: dict[str, str]) -> str:
    if isinstance(value, torch.Tensor):
        sizes = ",".join(_symbolic(str(size), symbols) for size in value.shape)
        return f"{_DTYPES.get(value.dtype, str(value.dtype))}[{sizes}]"
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(_value(item, symbols) for item in value) + ")"
    return "none" if value is None else _symbolic(str(value), symbols)


def _symbolic(text: str, symbols: dict[str, str]) -> str:
    return re.sub(r"[su]\d+", lambda found: symbols.get(found[0], found[0]), text)
