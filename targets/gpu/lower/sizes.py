"""How many rows there are, and how wide the programs are that each hold one."""

from __future__ import annotations

from math import prod

from mixplan.runtime.plan import Dim, Node, Sym
from mixplan.targets.gpu.lower.builder import power_of_two
from mixplan.targets.gpu.lower.views import Refused, View

__all__ = ["count_of", "last_axis", "row_block", "row_warps", "times"]

_WIDEST = 65536  # columns of a row that one program holds


def row_warps(block: int) -> int:
    """Warps of a program that holds `block` elements."""
    return 1 if block <= 256 else 4 if block <= 2048 else 8 if block <= 16384 else 16


def row_block(columns: int) -> int:
    """The power of two that holds a row. Refused where a program cannot."""
    if columns > _WIDEST:
        raise Refused(f"rows of {columns} elements; the kernels hold at most {_WIDEST}")
    return power_of_two(columns)


def times(dim: Dim, count: int) -> Dim:
    """A multiple of a dim."""
    return Sym(dim.sym, dim.mul * count, dim.add * count) if isinstance(dim, Sym) else dim * count


def count_of(shape: tuple[Dim, ...]) -> Dim:
    """Elements of a shape in which at most one dim varies."""
    varying = [dim for dim in shape if isinstance(dim, Sym)]
    fixed = prod(dim for dim in shape if isinstance(dim, int))
    if len(varying) > 1:
        raise Refused("two dims vary with the step")
    return times(varying[0], fixed) if varying else fixed


def last_axis(node: Node, view: View) -> int:
    """The size of the last dim, along which the node must work."""
    if int(str(node.attrs["axis"])) != len(view.shape) - 1:
        raise Refused(f"{node.op} over another axis than the last")
    columns = view.shape[-1]
    if not isinstance(columns, int):
        raise Refused(f"{node.op} over an axis that varies with the step")
    return columns
