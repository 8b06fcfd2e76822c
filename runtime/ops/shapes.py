"""Arithmetic on shapes whose dims may be symbolic: `mul * T + add`, or the same in R.

Only results that are affine in one symbol can be written down; everything else raises PlanError. A symbolic dim is never assumed equal
to an integer or to another symbol, though it may happen to be in some step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import gcd

from mixplan.runtime.errors import PlanError
from mixplan.runtime.plan import Dim, Shape, Sym

__all__ = [
    "add",
    "broadcast",
    "broadcast_all",
    "check_axes",
    "check_axis",
    "is_at_most",
    "least",
    "same_size",
    "shape_text",
    "strided",
    "total",
]


def shape_text(shape: Iterable[Dim]) -> str:
    """The shape as text for a message, such as "[1, 2*T+1, 64]"."""
    return f"[{', '.join(_dim_text(dim) for dim in shape)}]"


def _dim_text(dim: Dim) -> str:
    if isinstance(dim, int):
        return str(dim)
    factor = "" if dim.mul == 1 else f"{dim.mul}*"
    return f"{factor}{dim.sym}" + (f"{dim.add:+d}" if dim.add else "")


def add(a: Dim, b: Dim) -> Dim:
    """a + b; PlanError where the two have different symbols."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    if isinstance(a, int):
        a, b = b, a
    assert isinstance(a, Sym)
    if isinstance(b, int):
        return Sym(a.sym, a.mul, a.add + b)
    if a.sym != b.sym:
        raise PlanError(f"The sum of dims {_dim_text(a)} and {_dim_text(b)} mixes two symbols and cannot be expressed.")
    return Sym(a.sym, a.mul + b.mul, a.add + b.add)


def total(dims: Iterable[Dim]) -> Dim:
    """The sum of the dims."""
    out: Dim = 0
    for dim in dims:
        out = add(out, dim)
    return out


def least(dim: Dim) -> int:
    """The smallest value that the dim takes in any step: T is at least 1, R at least 0."""
    if isinstance(dim, int):
        return dim
    return dim.mul * (1 if dim.sym == "T" else 0) + dim.add


def is_at_most(a: Dim, b: Dim) -> bool:
    """Whether a <= b in every step."""
    if isinstance(a, int):
        return a <= least(b)
    if isinstance(b, int) or a.sym != b.sym:
        return False
    return a.mul <= b.mul and least(a) <= least(b)


def strided(dim: Dim, start: int, stop: int, step: int) -> Dim:
    """Number of elements of slice(start, stop, step) on a dim; stop -1 is the end. The slice must lie inside the dim in every step."""
    if step < 1 or start < 0 or stop < -1:
        raise PlanError(f"A slice has start {start}, stop {stop}, step {step}; start must be >= 0, stop >= 0 or -1 (the end), step >= 1.")
    if start > least(dim) or stop > least(dim) or 0 <= stop < start:
        raise PlanError(f"Slice [{start}:{stop}:{step}] does not lie inside a dim of {_dim_text(dim)}.")
    if stop >= 0:
        return -(-(stop - start) // step)
    if isinstance(dim, int):
        return -(-(dim - start) // step)
    if dim.mul % step:
        raise PlanError(f"Slice [{start}::{step}] of a dim of {_dim_text(dim)} has a length that cannot be expressed.")
    return Sym(dim.sym, dim.mul // step, -(-(dim.add - start) // step))


def _factors(shape: Shape) -> tuple[int, list[tuple[str, int, int]]]:
    """The product as an integer times a sorted list of primitive symbolic factors, which is unique."""
    coefficient, symbols = 1, []
    for dim in shape:
        if isinstance(dim, int):
            coefficient *= dim
        else:
            divisor = gcd(dim.mul, dim.add)
            coefficient *= divisor
            symbols.append((dim.sym, dim.mul // divisor, dim.add // divisor))
    return coefficient, sorted(symbols) if coefficient else []


def same_size(a: Shape, b: Shape) -> bool:
    """Whether both shapes hold equally many elements in every step."""
    return _factors(a) == _factors(b)


def broadcast(a: Shape, b: Shape) -> Shape:
    """numpy's broadcasting of two shapes."""
    rank = max(len(a), len(b))
    padded_a: Shape = (1,) * (rank - len(a)) + a
    padded_b: Shape = (1,) * (rank - len(b)) + b
    out: list[Dim] = []
    for x, y in zip(padded_a, padded_b, strict=True):
        if x != y and x != 1 and y != 1:
            raise PlanError(f"Shapes {shape_text(a)} and {shape_text(b)} do not broadcast.")
        out.append(y if x == 1 else x)
    return tuple(out)


def broadcast_all(shapes: Sequence[Shape]) -> Shape:
    """numpy's broadcasting of several shapes."""
    out: Shape = ()
    for shape in shapes:
        out = broadcast(out, shape)
    return out


def check_axis(op: str, axis: int, rank: int) -> int:
    """The axis, if it is in 0 .. rank - 1 (plans never count axes from the end)."""
    if not 0 <= axis < rank:
        raise PlanError(f"Op {op}: axis {axis} is out of range; allowed: 0 to {rank - 1}.")
    return axis


def check_axes(op: str, axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """The axes, if there is at least one, none twice, and each is in 0 .. rank - 1."""
    if not axes or len(set(axes)) != len(axes):
        raise PlanError(f"Op {op}: axes {list(axes)} must be at least one, and none twice.")
    return tuple(check_axis(op, axis, rank) for axis in axes)
