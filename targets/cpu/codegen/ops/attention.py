"""Attention over the paged KV cache: the step's keys and values are appended, then read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mixplan.runtime.dtypes import DType
from mixplan.runtime.errors import UnsupportedError
from mixplan.runtime.kv_format import KvFormat
from mixplan.runtime.plan import AttentionLayer, Node, Value
from mixplan.targets.cpu.codegen.builder import ALWAYS_PARALLEL, Builder
from mixplan.targets.cpu.codegen.layout import contiguous, last_contiguous
from mixplan.targets.cpu.codegen.ops.common import integer, number, text
from mixplan.targets.cpu.codegen.ops.rope import angles, rope_style
from mixplan.targets.cpu.codegen.ref import Buffer
from mixplan.targets.cpu.codegen.types import literal
from mixplan.targets.cpu.codegen.writer import Writer

__all__ = ["check_attention", "emit_attention"]

_MASKS = {"causal": "kMaskCausal", "chunked": "kMaskChunked"}
_STORAGE = {held: f"Kv::{held.value.upper()}" for held in KvFormat if held is not KvFormat.bf16}


def check_attention(node: Node, values: Sequence[Value]) -> str:
    """Why the attention kernels cannot run the node."""
    if text(node, "mask", "causal") not in _MASKS:
        return f"mask {text(node, 'mask')!r} has no kernel; there are {', '.join(_MASKS)}"
    return ""


@dataclass(frozen=True)
class _Run:
    """KV heads [first, first + count) of one format, whose pages lie `offset` (the end of a C++ sum, in bytes) within the layer's."""

    first: int
    count: int
    storage: str
    offset: str


def emit_attention(builder: Builder, node: Node, index: int) -> None:
    """For each run of heads of one format, two ops with the same arguments and a barrier between; both must see every thread of the pool.

    They rotate q and k themselves.
    """
    ropes = [builder.plan.nodes[rope] for rope in builder.rotations.get(index, ())]
    sources = [*(rope.inputs[0] for rope in ropes), node.inputs[2]] if ropes else node.inputs[:3]
    q, k, v = (last_contiguous(builder, builder.ref(value), index) for value in sources)
    optional = [builder.optional(node, position) for position in (3, 4)]
    sinks, slopes = (None if ref is None else contiguous(builder, ref, index) for ref in optional)
    y = builder.output(node.outputs[0])
    layer = integer(node, "layer")
    slot = builder.layers.index(layer)
    kept = builder.plan.attention[layer]
    group = (q.shape[-2].constant or 0) // kept.kv_heads
    dims = f"{k.shape[-1]}, {v.shape[-1]}"
    runs, builder.kv[slot] = _runs(kept, layer, dims)
    rotation, integers = "", text(node, "scores", "f32") == "i8"
    if ropes:
        cos, sin, stride = angles(builder, ropes[0], index)
        rotation = f", {cos.shape[-1]}, {rope_style(ropes[0])}"
    for run in runs:
        heads = f"{run.count * group}, {run.count}, {dims}, {run.storage}"
        scores = ", Scores::I8" if integers else ""
        template = f"{heads}{rotation or (', 0, Rope::Half' if scores else '')}{scores}"
        for kernel, few in (("attention_append", "last"), ("attention", "")):
            w = Writer()
            w.use("kernels/attention.h")
            w.line("AttentionArgs a{};")
            for name, ref, first in (("q", q, run.first * group), ("k", k, run.first), ("v", v, run.first)):
                w.line(f"a.{name} = {w.pointer(ref)}{_plus(first, ref.strides[-2])}; ")
                w.line(f"a.ld{name} = {ref.strides[-3]}; a.ld{name}_head = {ref.strides[-2]};")
            if ropes:
                w.line(f"a.cos = {w.pointer(cos)}; a.sin = {w.pointer(sin)}; a.ldc = {stride};")
            for name, extra in (("sinks", sinks), ("slopes", slopes)):
                if extra is not None:
                    w.line(f"a.{name} = {w.pointer(extra)}{_plus(run.first * group, 1)};")
            w.line(f"a.y = {w.pointer(y, write=True)}{_plus(run.first * group, y.strides[-2])};")
            w.line(f"a.ldy = {y.strides[-3]}; a.ldy_head = {y.strides[-2]};")
            w.line("a.positions = c.step->positions; a.slots = c.step->slots; a.lengths = c.step->lengths;")
            w.line("a.block_tables = c.step->block_tables; a.scratch = c.scratch; a.sync = c.sync;")
            w.line("a.max_pages = c.max_pages; a.pages = c.pages; a.page_stride = c.kv_stride;")
            w.line(f"a.cache = (uint8_t*){w.raw(Buffer('kv', slot), write=True)}{run.offset}; a.t = {q.shape[-3]};")
            softcap = literal(number(node, "softcap"), DType.f32)
            w.line(f"a.scale = {literal(number(node, 'scale'), DType.f32)}; a.softcap = {softcap};")
            w.line(f"a.window = {integer(node, 'window')}; a.mask = {_MASKS[text(node, 'mask', 'causal')]};")
            w.line(f"{kernel}<{template}>(a, c.tid, c.nt);")
            w.scratch.append(f"attention_scratch<{heads}{scores}>(nt, {builder.plan.max_step_tokens})")
            builder.emit(w, index, ALWAYS_PARALLEL, few)


def _plus(first: int, stride: object) -> str:
    return f" + {first} * ({stride})" if first else ""


def _runs(kept: AttentionLayer, layer: int, dims: str) -> tuple[list[_Run], str]:
    """Neighbouring heads of one format, and the bytes of a page as a C++ expression."""
    runs: list[_Run] = []
    size = ""
    first = 0
    for held, count in kept.runs:
        if held not in _STORAGE:
            raise UnsupportedError(
                f"Attention layer {layer} keeps {held.value}; the CPU kernels keep {', '.join(d.value for d in _STORAGE)}."
            )
        runs.append(_Run(first, count, _STORAGE[held], size))
        size += f" + kv_bytes_per_page<{count}, {dims}, {_STORAGE[held]}>()"
        first += count
    return runs, size.removeprefix(" + ")
