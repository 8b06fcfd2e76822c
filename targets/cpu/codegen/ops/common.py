"""Attribute access and small helpers shared by the emitters."""

from __future__ import annotations

from collections.abc import Sequence

from mixplan.runtime.plan import Node
from mixplan.targets.cpu.codegen.poly import Poly
from mixplan.targets.cpu.codegen.ref import collapse
from mixplan.targets.cpu.codegen.writer import view

__all__ = ["axis_of", "flag", "integer", "integers", "joint_views", "number", "text", "without"]


def integer(node: Node, name: str, default: int = 0) -> int:
    """An int attribute."""
    value = node.attrs.get(name, default)
    return int(value) if isinstance(value, (int, float)) else int(str(value))


def number(node: Node, name: str, default: float = 0.0) -> float:
    """A float attribute; "inf" and the like are spelled."""
    return float(node.attrs.get(name, default))  # type: ignore[arg-type]


def text(node: Node, name: str, default: str = "") -> str:
    """A string attribute."""
    return str(node.attrs.get(name, default))


def flag(node: Node, name: str, default: bool = False) -> bool:
    """A bool attribute."""
    return bool(node.attrs.get(name, default))


def integers(node: Node, name: str) -> tuple[int, ...]:
    """A list of ints."""
    value = node.attrs[name]
    return tuple(int(v) for v in value) if isinstance(value, (tuple, list)) else (int(str(value)),)


def axis_of(node: Node, rank: int) -> int:
    """The attribute `axis`, counted from the front."""
    return integer(node, "axis") % max(rank, 1)


def without(values: Sequence[Poly], axis: int) -> tuple[Poly, ...]:
    """All entries but that of `axis`."""
    return (*values[:axis], *values[axis + 1 :])


def joint_views(shape: Sequence[Poly], operands: Sequence[tuple[str, Sequence[Poly]]]) -> list[str]:
    """Views of one collapsed shape, for operands given as (pointer, strides)."""
    sizes, strides = collapse(tuple(shape), [tuple(s) for _, s in operands])
    return [view(name, sizes, s) for (name, _), s in zip(operands, strides, strict=True)]
