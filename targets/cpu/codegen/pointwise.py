"""Loop nests over elements: a chain of pointwise ops becomes one nest, and a copy is the shortest chain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mixplan.runtime.dtypes import DType
from mixplan.targets.cpu.codegen.builder import Builder
from mixplan.targets.cpu.codegen.poly import Poly, product
from mixplan.targets.cpu.codegen.ref import Ref, broadcast, collapse
from mixplan.targets.cpu.codegen.types import VARIABLE
from mixplan.targets.cpu.codegen.writer import Writer

__all__ = ["Statement", "emit_copy", "write_nest"]

_LOAD = {DType.f16: "f16_to_float({})", DType.bf16: "bf16_to_float({})"}
_STORE = {DType.f16: "float_to_f16({})", DType.bf16: "float_to_bf16({})"}
# A thread's share of a flat loop is a multiple of this many elements: a few cache lines.
_GRAIN = 64


@dataclass(frozen=True)
class Statement:
    """`variable` of `dtype` = `expression`, in which loaded inputs are called x0, x1, .. in order."""

    variable: str
    dtype: DType
    expression: str


def write_nest(
    writer: Writer,
    shape: Sequence[Poly],
    inputs: Sequence[Ref],
    statements: Sequence[Statement],
    stores: Sequence[tuple[str, Ref]],
    *,
    raw: bool = False,
) -> None:
    """Loops over `shape` that load each input (broadcast), run the statements and store variables.

    raw: move stored bits as they are, without widening f16 and bf16.
    """
    writer.use("generic/pointwise_math.h")
    loads = [broadcast(ref, tuple(shape)) for ref in inputs]
    targets = [ref for _, ref in stores]
    sizes, strides = collapse(tuple(shape), [ref.strides for ref in (*loads, *targets)])
    writer.line("{")
    names = ["" if ref.literal else writer.pointer(ref, restrict=True) for ref in loads]
    names += [writer.pointer(ref, write=True, restrict=True) for ref in targets]
    inner = sizes[-1]
    if len(sizes) == 1:
        writer.line(f"int64_t lo, hi; share({inner}, {_GRAIN}, c.tid, c.nt, &lo, &hi);")
        writer.line("for (int64_t i = lo; i < hi; ++i) {")
        bases = names
    else:
        writer.line(f"int64_t lo, hi; share({product(sizes[:-1])}, 1, c.tid, c.nt, &lo, &hi);")
        writer.line("for (int64_t o = lo; o < hi; ++o) {")
        bases = _write_rows(writer, sizes, strides, names)
        writer.line(f"for (int64_t i = 0; i < {inner}; ++i) {{")
    for number, ref in enumerate(loads):
        kind, element = VARIABLE[ref.dtype], _element(bases[number], strides[number][-1])
        if ref.literal:
            writer.line(f"const {kind} x{number} = {ref.literal};")
        else:
            load = "{}" if raw else _LOAD.get(ref.dtype, "{}")
            writer.line(f"const {'auto' if raw else kind} x{number} = {load.format(element)};")
    for statement in statements:
        writer.line(f"const {VARIABLE[statement.dtype]} {statement.variable} = {statement.expression};")
    for number, (variable, ref) in enumerate(stores, start=len(loads)):
        store = "{}" if raw else _STORE.get(ref.dtype, "{}")
        writer.line(f"{_element(bases[number], strides[number][-1])} = {store.format(variable)};")
    writer.line("}" if len(sizes) == 1 else "} }")
    writer.line("}")


def _element(base: str, stride: Poly) -> str:
    if stride == Poly():
        return f"*{base}"
    return f"{base}[i]" if stride == Poly.of(1) else f"{base}[i * {stride}]"


def _write_rows(writer: Writer, sizes: Sequence[Poly], strides: Sequence[Sequence[Poly]], names: Sequence[str]) -> list[str]:
    """Split the row number `o` into one index for each outer dimension, and move the pointers to the row."""
    outer = len(sizes) - 1
    if outer == 1:
        writer.line("const int64_t i0 = o;")
    else:
        rest = "o"
        for axis in range(outer - 1, 0, -1):
            writer.line(f"const int64_t i{axis} = {rest} % {sizes[axis]}, o{axis} = {rest} / {sizes[axis]};")
            rest = f"o{axis}"
        writer.line(f"const int64_t i0 = {rest};")
    bases = []
    for number, (name, here) in enumerate(zip(names, strides, strict=True)):
        terms = [f"i{axis} * {stride}" for axis, stride in enumerate(here[:outer]) if stride != Poly()]
        if not name or not terms:
            bases.append(name)
            continue
        writer.line(f"const auto q{number} = {name} + {' + '.join(terms)};")
        bases.append(f"q{number}")
    return bases


def emit_copy(builder: Builder, pairs: Sequence[tuple[Ref, Ref]], node: int) -> None:
    """One op that copies each source to its target, of the same shape and dtype. The targets must not overlap."""
    writer = Writer()
    for source, target in pairs:
        if source.literal:
            write_nest(writer, target.shape, [source], [], [("x0", target)])
        else:
            write_nest(writer, target.shape, [source], [], [("x0", target)], raw=True)
    work = Poly()
    for _, target in pairs:
        work = work + target.size
    builder.emit(writer, node, work)
