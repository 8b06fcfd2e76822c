"""take, index_nd, gather, scatter, index_add. Indices out of range end the step with an error naming the node."""

from __future__ import annotations

from mixplan.runtime.plan import Node
from mixplan.targets.cpu.codegen.builder import Builder
from mixplan.targets.cpu.codegen.layout import in_memory, widened
from mixplan.targets.cpu.codegen.ops.common import axis_of, integer, joint_views, text, without
from mixplan.targets.cpu.codegen.pointwise import emit_copy
from mixplan.targets.cpu.codegen.poly import ZERO, Poly
from mixplan.targets.cpu.codegen.ref import Ref, broadcast, collapse
from mixplan.targets.cpu.codegen.types import STORAGE
from mixplan.targets.cpu.codegen.writer import Writer, braces, view

__all__ = ["emit_gather", "emit_index_nd", "emit_scatter"]


def _same_kind(builder: Builder, refs: list[Ref], index: int) -> list[Ref]:
    """Index tensors of one dtype: where they differ, all become i64."""
    return refs if len({ref.dtype for ref in refs}) == 1 else [widened(builder, ref, index) for ref in refs]


def emit_index_nd(builder: Builder, node: Node, index: int) -> None:
    """Indices into consecutive axes from `axis` on; `take` is the case of one."""
    x = in_memory(builder, node.inputs[0], index)
    picks = _same_kind(builder, [in_memory(builder, value, index) for value in node.inputs[1:]], index)
    y = builder.output(node.outputs[0])
    axis, count = axis_of(node, len(x.shape)), len(picks)
    shape = y.shape[axis : len(y.shape) - (len(x.shape) - axis - count)]
    w = Writer()
    w.use("generic/index.h")
    px, py = w.pointer(x), w.pointer(y, write=True)
    pre = collapse(x.shape[:axis], [x.strides[:axis]])
    row = collapse(x.shape[axis + count :], [x.strides[axis + count :]])
    views = joint_views(shape, [(w.pointer(ref), broadcast(ref, shape).strides) for ref in picks])
    w.line(f"const View picks[] = {braces(views)};")
    w.line(f"const int64_t sizes[] = {braces(x.shape[axis : axis + count])}, strides[] = {braces(x.strides[axis : axis + count])};")
    w.line(
        f"index_nd<{STORAGE[x.dtype]}, {STORAGE[picks[0].dtype]}, {count}>"
        f"(c, {py}, {view(px, pre[0], pre[1][0])}, picks, sizes, strides, {_row(row)});"
    )
    builder.emit(w, index, y.size)


def _row(collapsed: tuple[list[Poly], list[list[Poly]]]) -> str:
    """A row of one element is given the stride 1, which is the fast case."""
    sizes, (strides,) = collapsed
    return view("nullptr", sizes, [Poly.of(1)] if strides == [ZERO] and sizes == [Poly.of(1)] else strides)


def emit_gather(builder: Builder, node: Node, index: int) -> None:
    """One element for each element of the index."""
    x, pick = in_memory(builder, node.inputs[0], index), in_memory(builder, node.inputs[1], index)
    y = builder.output(node.outputs[0])
    axis = axis_of(node, len(x.shape))
    w = Writer()
    w.use("generic/index.h")
    px, pi, py = w.pointer(x), w.pointer(pick), w.pointer(y, write=True)
    still = tuple(ZERO if a == axis else stride for a, stride in enumerate(x.strides))
    vi, vx = joint_views(pick.shape, [(pi, pick.strides), (px, still)])
    w.line(f"gather<{STORAGE[x.dtype]}, {STORAGE[pick.dtype]}>(c, {py}, {vi}, {vx}, {x.shape[axis]}, {x.strides[axis]});")
    builder.emit(w, index, y.size * 2)


def emit_scatter(builder: Builder, node: Node, index: int) -> None:
    """scatter and index_add: first a copy of x, then the writes."""
    x, pick, src = (in_memory(builder, value, index) for value in node.inputs)
    y = builder.output(node.outputs[0])
    emit_copy(builder, [(x, y)], index)
    axis = integer(node, "axis") % len(x.shape)
    add = node.op == "index_add" or text(node, "reduce", "none") == "add"
    if node.op == "index_add":
        # The same index for every line along the axis.
        strides = tuple(pick.strides[0] if a == axis else ZERO for a in range(len(x.shape)))
        pick = pick.view(src.shape, strides)
    w = Writer()
    w.use("generic/index.h")
    pi, ps, py = w.pointer(pick), w.pointer(src), w.pointer(y, write=True)
    others = without(pick.shape, axis)
    vy, vi, vs = joint_views(others, [(py, without(y.strides, axis)), (pi, without(pick.strides, axis)), (ps, without(src.strides, axis))])
    w.line(
        f"scatter<{STORAGE[x.dtype]}, {STORAGE[pick.dtype]}, {'true' if add else 'false'}>"
        f"(c, {vy}, {y.shape[axis]}, {y.strides[axis]}, {vi}, {pick.shape[axis]}, {pick.strides[axis]}, {vs}, {src.strides[axis]});"
    )
    builder.emit(w, index, pick.size * 2)
