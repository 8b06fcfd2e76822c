"""Activations spelled out in arithmetic become the ATen op that they are."""

from __future__ import annotations

import math
from typing import Any

from torch import fx

from mixplan.passes.patterns import aten, commuted, is_call, scalar_of
from mixplan.passes.rewriting import Rewriter
from mixplan.passes.rules import SimpleRule, rule_pass

__all__ = ["ACTIVATIONS", "ACTIVATION_RULES"]

_CLOSE = 1e-5


def _is(value: Any, number: float) -> bool:
    found = scalar_of(value)
    return found is not None and math.isclose(found, number, rel_tol=_CLOSE)


def _scaled(node: Any, number: float) -> fx.Node | None:
    """x where node is x * number or x / (1 / number)."""
    if is_call(node, aten.mul.Tensor):
        for a, b in commuted(node):
            if _is(b, number) and isinstance(a, fx.Node):
                return a
    if is_call(node, aten.div.Tensor) and _is(node.args[1], 1 / number) and isinstance(node.args[0], fx.Node):
        return node.args[0]
    return None


def _plus(node: Any, number: float) -> fx.Node | None:
    if is_call(node, aten.add.Tensor):
        for a, b in commuted(node):
            if _is(b, number) and isinstance(a, fx.Node):
                return a
    return None


def _factors(node: Any) -> list[Any]:
    """The factors of a product, nested products opened."""
    if not is_call(node, aten.mul.Tensor):
        return [node]
    return [factor for side in node.args[:2] for factor in _factors(side)]


def _silu(node: fx.Node, edit: Rewriter) -> fx.Node | None:
    """x * sigmoid(x)."""
    for x, gate in commuted(node):
        if is_call(gate, aten.sigmoid.default) and gate.args[0] is x:
            return edit.call(aten.silu.default, x)
    return None


def _gelu(node: fx.Node, edit: Rewriter) -> fx.Node | None:
    """0.5 * x * (1 + erf(x / sqrt 2)), or with tanh of sqrt(2 / pi) * (x + 0.044715 x^3) in place of erf (arXiv:1606.08415)."""
    factors = _factors(node)
    halves = [factor for factor in factors if _is(factor, 0.5)]
    rest = [factor for factor in factors if not _is(factor, 0.5)]
    if len(halves) != 1 or len(rest) != 2:
        return None
    for x, gate in (rest, rest[::-1]):
        inner = _plus(gate, 1.0)
        if inner is None:
            continue
        if is_call(inner, aten.erf.default) and _scaled(inner.args[0], math.sqrt(0.5)) is x:
            return edit.call(aten.gelu.default, x)
        if is_call(inner, aten.tanh.default) and _is_tanh_argument(inner.args[0], x):
            return edit.call(aten.gelu.default, x, approximate="tanh")
    return None


def _is_tanh_argument(node: Any, x: Any) -> bool:
    """sqrt(2 / pi) * (x + 0.044715 x^3), or x * sqrt(2 / pi) * (1 + 0.044715 x^2)."""
    scale = math.sqrt(2 / math.pi)
    total = _scaled(node, scale)
    if is_call(total, aten.add.Tensor):
        return any(a is x and _is_cube(_scaled(b, 0.044715), x) for a, b in commuted(total))
    factors = _factors(node)
    sums = [factor for factor in factors if _plus(factor, 1.0) is not None]
    others = [factor for factor in factors if factor not in sums]
    if len(sums) != 1 or len(others) != 2 or x not in others or not any(_is(factor, scale) for factor in others):
        return False
    inner = sorted(_factors(_plus(sums[0], 1.0)), key=lambda factor: not isinstance(factor, float))
    return len(inner) == 3 and _is(inner[0], 0.044715) and inner[1] is x and inner[2] is x


def _is_cube(node: Any, x: Any) -> bool:
    if is_call(node, aten.pow.Tensor_Scalar):
        return node.args[0] is x and _is(node.args[1], 3.0)
    return is_call(node, aten.mul.Tensor) and all(factor is x for factor in _factors(node)) and len(_factors(node)) == 3


ACTIVATION_RULES = (
    SimpleRule("silu", (aten.mul.Tensor,), _silu),
    SimpleRule("gelu", (aten.mul.Tensor,), _gelu),
)
ACTIVATIONS = rule_pass("activations", "canonicalize", "silu and gelu spelled out in arithmetic to the op", ACTIVATION_RULES)
