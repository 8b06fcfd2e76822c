"""sum, mean, prod, amax, amin, any, all."""

from __future__ import annotations

from mixplan.runtime.dtypes import DType
from mixplan.runtime.plan import Node
from mixplan.targets.cpu.codegen.builder import Builder
from mixplan.targets.cpu.codegen.layout import in_memory
from mixplan.targets.cpu.codegen.ops.common import integers
from mixplan.targets.cpu.codegen.ref import collapse
from mixplan.targets.cpu.codegen.types import STORAGE
from mixplan.targets.cpu.codegen.writer import Writer, view

__all__ = ["REDUCTIONS", "emit_reduce"]

REDUCTIONS = {"sum": "Sum", "mean": "Mean", "prod": "Prod", "amax": "Amax", "amin": "Amin", "any": "Any", "all": "All"}


def emit_reduce(builder: Builder, node: Node, index: int) -> None:
    """Kept axes first, reduced axes second; no axes given means none reduced."""
    x = in_memory(builder, node.inputs[0], index)
    rank = len(x.shape)
    axes = sorted({axis % rank for axis in integers(node, "axes")}) if rank else []
    kept = [axis for axis in range(rank) if axis not in axes]
    y = builder.output(node.outputs[0])
    w = Writer()
    w.use("generic/reduce.h")
    px, py = w.pointer(x), w.pointer(y, write=True)
    kept_sizes, (kept_strides,) = collapse(tuple(x.shape[a] for a in kept), [tuple(x.strides[a] for a in kept)])
    sizes, (strides,) = collapse(tuple(x.shape[a] for a in axes), [tuple(x.strides[a] for a in axes)])
    out = DType.bool if node.op in ("any", "all") else y.dtype
    w.line(
        f"reduce<{REDUCTIONS[node.op]}<{STORAGE[x.dtype]}, {STORAGE[out]}>>"
        f"(c, {py}, {view(px, kept_sizes, kept_strides)}, {view('nullptr', sizes, strides)});"
    )
    builder.emit(w, index, x.size)
