"""rms_norm, layer_norm, their quantizing forms, and quantize_act."""

from __future__ import annotations

from collections.abc import Sequence

from mixplan.runtime.dtypes import DType
from mixplan.runtime.plan import Node, Sym, Value
from mixplan.targets.cpu.codegen.builder import Builder, Rows
from mixplan.targets.cpu.codegen.layout import contiguous, last_contiguous, rows
from mixplan.targets.cpu.codegen.ops.common import integer, number
from mixplan.targets.cpu.codegen.poly import ONE, ZERO, Poly, product
from mixplan.targets.cpu.codegen.ref import Ref, collapse
from mixplan.targets.cpu.codegen.types import literal
from mixplan.targets.cpu.codegen.writer import Writer

__all__ = ["check_quantize", "emit_norm", "emit_quantize"]

# The kernels keep a normalized row on the stack, of which a worker thread has 1 MiB.
_MOST_COLUMNS = 1 << 16


def check_quantize(node: Node, values: Sequence[Value]) -> str:
    """Why the fused kernels cannot run the node, "" if they can."""
    columns = values[node.inputs[0]].shape[-1]
    if not isinstance(columns, int) or columns > _MOST_COLUMNS:
        return f"rows of {columns} elements; the kernel takes at most {_MOST_COLUMNS}"
    return ""


def _parameters(builder: Builder, node: Node, index: int, w: Writer) -> None:
    """weight and bias, inputs 1 and 2, where given."""
    for position, name in ((1, "weight"), (2, "bias")):
        ref = builder.optional(node, position)
        if ref is not None:
            w.line(f"a.{name} = {w.pointer(contiguous(builder, ref, index))};")


def _rows(x: Ref, y: Ref) -> tuple[list[Poly], list[Poly], list[Poly]] | None:
    """Sizes and both strides of the rows as (outer, inner), None where they need more dimensions."""
    sizes, (xs, ys) = collapse(x.shape[:-1], [x.strides[:-1], y.strides[:-1]])
    if len(sizes) > 2:
        return None
    lead = 2 - len(sizes)
    # With one dimension it is the outer one, so that the rows are shared out.
    return sizes + [ONE] * lead, xs + [ZERO] * lead, ys + [ZERO] * lead


def emit_norm(builder: Builder, node: Node, index: int) -> None:
    """Over the last dimension."""
    x = last_contiguous(builder, builder.ref(node.inputs[0]), index)
    y = builder.output(node.outputs[0])
    rows = _rows(x, y)
    if rows is None:
        x = contiguous(builder, x, index)
        rows = _rows(x, y)
        assert rows is not None
    sizes, xs, ys = rows
    w = Writer()
    w.use("kernels/norm.h")
    w.line("NormArgs a{};")
    w.line(f"a.x = {w.pointer(x)}; a.ldx = {xs[0]}; a.ldx_inner = {xs[1]};")
    _parameters(builder, node, index, w)
    w.line(f"a.y = {w.pointer(y, write=True)}; a.ldy = {ys[0]}; a.ldy_inner = {ys[1]};")
    w.line(f"a.outer = {sizes[0]}; a.inner = {sizes[1]}; a.eps = {literal(number(node, 'eps'), DType.f32)};")
    w.line(f"{node.op}<{x.shape[-1]}>(a, c.tid, c.nt);")
    builder.emit(w, index, x.size)


def emit_quantize(builder: Builder, node: Node, index: int) -> None:
    """quantize_act, rms_norm_quant and layer_norm_quant: int8 values, scales and sums."""
    x, ldx = rows(builder, builder.ref(node.inputs[0]), index)
    q, scales, sums = (builder.output(value) for value in node.outputs)
    w = Writer()
    w.use("kernels/quantize.h")
    w.line("QuantizeArgs a{};")
    w.line(f"a.x = {w.pointer(x)}; a.ldx = {ldx};")
    eps = ""
    if node.op != "quantize_act":
        _parameters(builder, node, index, w)
        eps = literal(number(node, "eps"), DType.f32)
        w.line(f"a.eps = {eps};")
    w.line(f"a.q = {w.pointer(q, write=True)}; a.ldq = {q.shape[-1]};")
    w.line(f"a.scales = {w.pointer(scales, write=True)}; a.sums = {w.pointer(sums, write=True)}; a.ldg = {scales.shape[-1]};")
    count = product(x.shape[:-1])
    w.line(f"a.m = {count};")
    w.line(f"{node.op}<{x.shape[-1]}, {integer(node, 'group')}>(a, c.tid, c.nt);")
    few = str(count) if count in (Poly.of(Sym("T")), Poly.of(Sym("R"))) and _only_products(builder, node) else ""
    if few:
        weight, bias = (builder.optional(node, position) for position in (1, 2)) if eps else (None, None)
        builder.quantized[node.outputs[0]] = Rows(node.op, x, ldx, weight, bias, eps)
    builder.emit(w, index, x.size * 2, few)


def _only_products(builder: Builder, node: Node) -> bool:
    """Whether nothing but products reads what the node makes, so that they can make it themselves."""
    readers = [builder.readers(value) for value in node.outputs]
    return all(found is not None and all(reader.op in ("linear_q", "gated_linear_q") for reader in found) for found in readers)
