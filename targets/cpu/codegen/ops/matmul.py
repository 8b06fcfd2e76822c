"""matmul of two activations, batched with numpy's rules."""

from __future__ import annotations

from mixplan.runtime.plan import Node
from mixplan.targets.cpu.codegen.builder import Builder
from mixplan.targets.cpu.codegen.layout import in_memory
from mixplan.targets.cpu.codegen.ops.common import joint_views
from mixplan.targets.cpu.codegen.poly import ONE, ZERO, Poly, product
from mixplan.targets.cpu.codegen.ref import Ref, broadcast
from mixplan.targets.cpu.codegen.writer import Writer

__all__ = ["emit_matmul"]


def emit_matmul(builder: Builder, node: Node, index: int) -> None:
    """[.., M, K] x [.., K, N]; vectors are taken as one row or one column."""
    a, b = (in_memory(builder, value, index) for value in node.inputs)
    y = builder.output(node.outputs[0])
    batch = y.shape[: len(y.shape) - (len(a.shape) > 1) - (len(b.shape) > 1)]
    if len(a.shape) == 1:
        a = a.view((ONE, *a.shape), (ZERO, *a.strides))
    if len(b.shape) == 1:
        b = b.view((*b.shape, ONE), (*b.strides, ZERO))
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    w = Writer()
    w.use("generic/matmul.h")
    pa, pb, py = w.pointer(a), w.pointer(b), w.pointer(y, write=True)
    va, vb = joint_views(batch, [(pa, _batch_strides(a, batch)), (pb, _batch_strides(b, batch))])
    strides = ", ".join(str(stride) for stride in (a.strides[-2], a.strides[-1], b.strides[-2], b.strides[-1]))
    w.line(f"matmul(c, {py}, {va}, {vb}, {m}, {n}, {k}, {strides});")
    builder.emit(w, index, product((*batch, m, n, k)))


def _batch_strides(ref: Ref, batch: tuple[Poly, ...]) -> tuple[Poly, ...]:
    outer = Ref(ref.buffer, ref.dtype, ref.shape[:-2], ref.strides[:-2], ref.offset)
    return broadcast(outer, batch).strides
