"""Rotary position embedding of token-major heads."""

from __future__ import annotations

from mixplan.runtime.plan import Node
from mixplan.targets.cpu.codegen.builder import Builder
from mixplan.targets.cpu.codegen.layout import contiguous, last_contiguous
from mixplan.targets.cpu.codegen.ops.common import text
from mixplan.targets.cpu.codegen.poly import ONE, ZERO, Poly
from mixplan.targets.cpu.codegen.ref import Ref
from mixplan.targets.cpu.codegen.writer import Writer

__all__ = ["angles", "emit_rope", "rope_style"]


def _token_stride(ref: Ref) -> Poly:
    return ZERO if ref.shape[-2] == ONE else ref.strides[-2]


def angles(builder: Builder, node: Node, index: int) -> tuple[Ref, Ref, Poly]:
    """cos and sin of a rope node, and the stride between their tokens (0 broadcasts)."""
    cos, sin = (last_contiguous(builder, builder.ref(value), index) for value in node.inputs[1:3])
    if _token_stride(cos) != _token_stride(sin):
        cos, sin = contiguous(builder, cos, index), contiguous(builder, sin, index)
    return cos, sin, _token_stride(cos)


def rope_style(node: Node) -> str:
    """The kernels' name of a rope node's style."""
    return "Rope::Interleaved" if text(node, "style") == "interleaved" else "Rope::Half"


def emit_rope(builder: Builder, node: Node, index: int) -> None:
    """x [1, T, H, D], cos and sin [1, T, Dr]."""
    x = last_contiguous(builder, builder.ref(node.inputs[0]), index)
    cos, sin, stride = angles(builder, node, index)
    y = builder.output(node.outputs[0])
    w = Writer()
    w.use("kernels/rope.h")
    w.line("RopeArgs a{};")
    w.line(f"a.x = {w.pointer(x)}; a.ldx = {x.strides[-3]}; a.ldx_head = {x.strides[-2]};")
    w.line(f"a.cos = {w.pointer(cos)}; a.sin = {w.pointer(sin)}; a.ldc = {stride};")
    w.line(f"a.y = {w.pointer(y, write=True)}; a.ldy = {y.strides[-3]}; a.ldy_head = {y.strides[-2]};")
    w.line(f"a.t = {x.shape[-3]}; a.heads = {x.shape[-2]};")
    w.line(f"rope<{x.shape[-1]}, {cos.shape[-1]}, {rope_style(node)}>(a, c.tid, c.nt);")
    builder.emit(w, index, x.size)
