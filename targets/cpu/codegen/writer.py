"""Writes the body of one generated function, and remembers its operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mixplan.targets.cpu.codegen.poly import Poly
from mixplan.targets.cpu.codegen.ref import Buffer, Ref
from mixplan.targets.cpu.codegen.types import STORAGE

__all__ = ["Operand", "Writer", "braces", "view"]


@dataclass(frozen=True)
class Operand:
    """A buffer and a byte offset in it, known when the code is generated."""

    buffer: Buffer
    offset: int
    write: bool


@dataclass
class Writer:
    """Text that depends only on structure (shapes, strides, attributes), never on where operands lie: equal ops share one function."""

    lines: list[str] = field(default_factory=list)
    operands: list[Operand] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)
    scratch: list[str] = field(default_factory=list)

    def line(self, text: str) -> None:
        """Add one line."""
        self.lines.append(f"  {text}")

    def use(self, *headers: str) -> None:
        """Say which template headers the text needs."""
        self.headers.extend(headers)

    def pointer(self, ref: Ref, *, write: bool = False, restrict: bool = False) -> str:
        """Declare a pointer to the first element of `ref`, which is not a literal; returns its name."""
        known, rest = ref.offset.split()
        number = len(self.operands)
        self.operands.append(Operand(ref.buffer, known * ref.dtype.itemsize, write))
        kind = STORAGE[ref.dtype] if write else f"const {STORAGE[ref.dtype]}"
        plus = "" if rest == Poly() else f" + {rest}"
        self.line(f"{kind}* {'__restrict ' if restrict else ''}const p{number} = ({kind}*)c.p[{number}]{plus};")
        return f"p{number}"

    def raw(self, buffer: Buffer, *, write: bool = False) -> str:
        """The expression of an untyped pointer to the start of a buffer."""
        self.operands.append(Operand(buffer, 0, write))
        return f"c.p[{len(self.operands) - 1}]"


def braces(values: Sequence[Poly | int | str]) -> str:
    """A C++ initialiser list."""
    return "{" + ", ".join(str(value) for value in values) + "}"


def view(pointer: str, shape: Sequence[Poly], strides: Sequence[Poly]) -> str:
    """A View (view.h) of at least one dimension."""
    if not shape:
        return f"View{{(void*){pointer}, 1, {{1}}, {{0}}}}"
    return f"View{{(void*){pointer}, {len(shape)}, {braces(shape)}, {braces(strides)}}}"
