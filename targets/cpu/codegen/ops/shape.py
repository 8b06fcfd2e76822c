"""cat, pad, tril, triu, iota."""

from __future__ import annotations

from mixplan.runtime.plan import Node
from mixplan.targets.cpu.codegen.builder import Builder
from mixplan.targets.cpu.codegen.layout import in_memory
from mixplan.targets.cpu.codegen.ops.common import axis_of, integer, integers, number
from mixplan.targets.cpu.codegen.pointwise import emit_copy
from mixplan.targets.cpu.codegen.poly import Poly, product
from mixplan.targets.cpu.codegen.types import FLOATS, STORAGE, literal
from mixplan.targets.cpu.codegen.writer import Writer, braces, view

__all__ = ["emit_cat", "emit_iota", "emit_pad", "emit_triangle"]


def emit_cat(builder: Builder, node: Node, index: int) -> None:
    """Each input is copied to its place in the output, in one op."""
    refs = [builder.ref(value) for value in node.inputs]
    y = builder.output(node.outputs[0])
    axis, start, pairs = axis_of(node, len(y.shape)), Poly(), []
    for ref in refs:
        place = y.view(ref.shape, y.strides, start * y.strides[axis])
        pairs.append((ref, place))
        start = start + ref.shape[axis]
    emit_copy(builder, pairs, index)


def emit_pad(builder: Builder, node: Node, index: int) -> None:
    """Pads of any axis, of either sign."""
    x = in_memory(builder, node.inputs[0], index)
    y = builder.output(node.outputs[0])
    lows = integers(node, "pads")[::2]
    w = Writer()
    w.use("generic/shape.h", "generic/pointwise_math.h")
    px, py = w.pointer(x), w.pointer(y, write=True)
    fill = number(node, "value")
    value = literal(fill if y.dtype in FLOATS else int(fill), y.dtype)
    if y.dtype in FLOATS and STORAGE[y.dtype] != "float":
        value = f"float_to_{y.dtype.value}({value})"
    w.line(f"const int64_t low[kMaxRank] = {braces(lows)};")
    w.line(f"pad<{STORAGE[y.dtype]}>(c, {py}, {view('nullptr', y.shape, y.strides)}, {view(px, x.shape, x.strides)}, low, {value});")
    builder.emit(w, index, y.size * 4)


def emit_triangle(builder: Builder, node: Node, index: int) -> None:
    """tril and triu of the last two axes."""
    x = in_memory(builder, node.inputs[0], index)
    y = builder.output(node.outputs[0])
    w = Writer()
    w.use("generic/shape.h")
    px, py = w.pointer(x), w.pointer(y, write=True)
    lower = "true" if node.op == "tril" else "false"
    w.line(f"triangle<{STORAGE[y.dtype]}, {lower}>(c, {py}, {view(px, x.shape, x.strides)}, {integer(node, 'diagonal')});")
    builder.emit(w, index, y.size * 4)


def emit_iota(builder: Builder, node: Node, index: int) -> None:
    """The index along an axis."""
    y = builder.output(node.outputs[0])
    axis = axis_of(node, len(y.shape))
    w = Writer()
    w.use("generic/shape.h")
    py = w.pointer(y, write=True)
    w.line(f"iota<{STORAGE[y.dtype]}>(c, {py}, {y.size}, {y.shape[axis]}, {product(y.shape[axis + 1 :])});")
    builder.emit(w, index, y.size * 2)
