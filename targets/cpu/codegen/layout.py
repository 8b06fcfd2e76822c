"""Brings a reference into the layout that a kernel takes: as it is where its strides allow, else as a copy."""

from __future__ import annotations

from mixplan.runtime.dtypes import DType
from mixplan.targets.cpu.codegen.builder import Builder
from mixplan.targets.cpu.codegen.pointwise import Statement, emit_copy, write_nest
from mixplan.targets.cpu.codegen.poly import ONE, Poly
from mixplan.targets.cpu.codegen.ref import Ref, collapse
from mixplan.targets.cpu.codegen.writer import Writer

__all__ = ["contiguous", "in_memory", "last_contiguous", "rows", "widened"]


def contiguous(builder: Builder, ref: Ref, node: int) -> Ref:
    """`ref`, or a copy of it that is contiguous."""
    if ref.contiguous:
        return ref
    copy = builder.temporary(ref.dtype, ref.shape)
    emit_copy(builder, [(ref, copy)], node)
    return copy


def in_memory(builder: Builder, value: int, node: int) -> Ref:
    """A value of any strides that is not a literal."""
    ref = builder.ref(value)
    return contiguous(builder, ref, node) if ref.literal else ref


def last_contiguous(builder: Builder, ref: Ref, node: int) -> Ref:
    """`ref`, or a copy, with neighbouring elements along the last axis."""
    if not ref.literal and ONE in (ref.strides[-1], ref.shape[-1]):
        return ref
    return contiguous(builder, ref, node)


def rows(builder: Builder, ref: Ref, node: int) -> tuple[Ref, Poly]:
    """`ref` (or a copy) as rows along the last axis, whose elements are neighbours: the reference, and the one stride between rows."""
    if not ref.literal and ONE in (ref.strides[-1], ref.shape[-1]):
        sizes, (strides,) = collapse(ref.shape[:-1], [ref.strides[:-1]])
        if len(sizes) == 1:
            return ref, strides[0] if sizes[0] != ONE else ref.shape[-1]
    ref = contiguous(builder, ref, node)
    return ref, ref.shape[-1]


def widened(builder: Builder, ref: Ref, node: int) -> Ref:
    """An index tensor as i64."""
    if ref.dtype is DType.i64:
        return ref
    wide = builder.temporary(DType.i64, ref.shape)
    w = Writer()
    write_nest(w, ref.shape, [ref], [Statement("v0", DType.i64, "(int64_t)x0")], [("v0", wide)])
    builder.emit(w, node, ref.size)
    return wide
