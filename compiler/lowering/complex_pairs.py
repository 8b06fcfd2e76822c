"""Complex tensors, which some models use for rotary embeddings: carried as a real and an imaginary part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mixplan.compiler.constants import Call, Expr
from mixplan.compiler.lowering.context import CannotLower, Context
from mixplan.compiler.lowering.operands import ComplexPair, Operand, Ref
from mixplan.runtime.dtypes import DType

__all__ = ["COMPLEX_TABLE", "PARTWISE", "TABLE", "pair"]

Lowering = Callable[..., Operand]


def pair(c: Context, x: Operand) -> ComplexPair:
    """Any operand as a complex pair; a real one gets an imaginary part of zeros."""
    if isinstance(x, ComplexPair):
        return x
    if isinstance(x, Expr) and x.dtype.is_complex:
        parts = [Call(f, (x,), {}, x.shape, torch.float32) for f in (_real, _imag)]
        return ComplexPair(*(c.ref(p) for p in parts))
    ref = c.ref(x, DType.f32)
    return ComplexPair(ref, c.build.fill(0.0, DType.f32))


def _real(x: torch.Tensor) -> torch.Tensor:
    return torch.real(x).float().contiguous()


def _imag(x: torch.Tensor) -> torch.Tensor:
    return torch.imag(x).float().contiguous()


def polar(c: Context, size: Operand, angle: Operand) -> Operand:
    """size * (cos(angle) + i sin(angle))."""
    length, turn = c.ref(size, DType.f32), c.ref(angle, DType.f32)
    return ComplexPair(c.binary("mul", length, c.unary("cos", turn)), c.binary("mul", length, c.unary("sin", turn)))


def view_as_complex(c: Context, x: Operand) -> Operand:
    """[..., 2] as complex [...]."""
    ref = c.ref(x, DType.f32)
    axis = ref.rank - 1
    parts = [c.reshape(c.slice(ref, axis, i, i + 1), ref.shape[:-1]) for i in (0, 1)]
    return ComplexPair(*parts)


def view_as_real(c: Context, x: Operand) -> Operand:
    """Complex [...] as [..., 2]."""
    both = pair(c, x)
    shape = c.broadcast(both.real.shape, both.imag.shape)
    return c.cat([c.reshape(c.expand(p, shape), (*shape, 1)) for p in (both.real, both.imag)], len(shape))


def mul(c: Context, a: Operand, b: Operand) -> Operand:
    """(ar br - ai bi) + i (ar bi + ai br)."""
    for real, other in ((a, b), (b, a)):
        if not _is_complex(real):
            factor, both = c.ref(real, DType.f32), pair(c, other)
            return ComplexPair(c.binary("mul", both.real, factor), c.binary("mul", both.imag, factor))
    x, y = pair(c, a), pair(c, b)

    def times(p: Ref, q: Ref) -> Ref:
        return c.binary("mul", p, q)

    return ComplexPair(
        c.binary("sub", times(x.real, y.real), times(x.imag, y.imag)), c.binary("add", times(x.real, y.imag), times(x.imag, y.real))
    )


def _sum(op: str) -> Lowering:
    def lower(c: Context, a: Operand, b: Operand, **_: Any) -> Operand:
        x, y = pair(c, a), pair(c, b)
        return ComplexPair(c.binary(op, x.real, y.real), c.binary(op, x.imag, y.imag))

    return lower


def div(c: Context, a: Operand, b: Operand) -> Operand:
    """Division by a real number or tensor."""
    if _is_complex(b):
        raise CannotLower("division by a complex tensor")
    both, by = pair(c, a), c.ref(b, DType.f32)
    return ComplexPair(c.binary("div", both.real, by), c.binary("div", both.imag, by))


def absolute(c: Context, x: Operand) -> Operand:
    """sqrt(re^2 + im^2)."""
    both = pair(c, x)
    return c.unary("sqrt", c.binary("add", c.unary("square", both.real), c.unary("square", both.imag)))


def conj(c: Context, x: Operand) -> Operand:
    """The imaginary part negated."""
    both = pair(c, x)
    return ComplexPair(both.real, c.unary("neg", both.imag))


def make(c: Context, real: Operand, imag: Operand) -> Operand:
    """torch.complex."""
    return ComplexPair(c.ref(real, DType.f32), c.ref(imag, DType.f32))


def to(c: Context, x: Operand, *_: Any, **__: Any) -> Operand:
    """A cast among complex dtypes, or to the real part."""
    both = pair(c, x)
    return both if c.val.dtype.is_complex else c.cast(both.real, c.dtype)


def _is_complex(x: Operand) -> bool:
    return isinstance(x, ComplexPair) or (isinstance(x, Expr) and x.dtype.is_complex)


# Ops that make a pair of real operands.
TABLE: dict[str, Lowering] = {"aten.polar": polar, "aten.view_as_complex": view_as_complex, "aten.complex": make}

# Ops on pairs.
COMPLEX_TABLE: dict[str, Lowering] = {
    "aten.view_as_real": view_as_real,
    "aten.mul": mul,
    "aten.add": _sum("add"),
    "aten.sub": _sum("sub"),
    "aten.div": div,
    "aten.abs": absolute,
    "aten.conj": conj,
    "aten._conj": conj,
    "aten.resolve_conj": lambda c, x: pair(c, x),
    "aten.real": lambda c, x: pair(c, x).real,
    "aten.imag": lambda c, x: pair(c, x).imag,
    "aten.to": to,
    "aten._to_copy": to,
}

# Ops that act on both parts alike.
# fmt: off
PARTWISE = frozenset({
    "aten." + name for name in (
        "alias", "cat", "chunk", "clone", "contiguous", "detach", "expand", "expand_as", "flatten", "index", "index_select", "narrow",
        "neg", "permute", "repeat", "reshape", "select", "slice", "split", "squeeze", "stack", "transpose", "unbind", "unflatten",
        "unsqueeze", "view", "_unsafe_view",
    )
})
# fmt: on
