"""Keys and values as the KV cache holds them, for the tokens of the step itself; what the device stores rounds in the same way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mixplan.runtime.dtypes import DType
from mixplan.runtime.kv_format import KvCodes, KvFloats
from mixplan.runtime.plan import AttentionLayer
from mixplan.targets.npu.lower.floats8 import as_floats8

if TYPE_CHECKING:
    from mixplan.targets.npu.graph import Graph

__all__ = ["as_stored"]


def as_stored(g: Graph, x: str, layer: AttentionLayer, size: int, *, keys: bool) -> str:
    """x f32 [T, heads, size], rounded to each head's format."""
    runs = [(held.keys if keys else held.values, count) for held, count in layer.runs]
    if all(held is DType.f32 for held, _ in runs):
        return x
    parts, first = [], 0
    for held, count in runs:
        part = x if len(runs) == 1 else g.part(x, 1, first, first + count)
        if isinstance(held, KvCodes):
            parts.append(_coded(g, part, held, count, size))
        else:
            parts.append(as_floats8(g, part) if isinstance(held, KvFloats) else g.cast(g.cast(part, held.value), "f32"))
        first += count
    return parts[0] if len(parts) == 1 else g.op("Concat", *parts, axis=1)


def _coded(g: Graph, x: str, held: KvCodes, heads: int, size: int) -> str:
    """scale * code + minimum; see runtime/kv_format.py, which this follows step by step."""
    groups, width = held.groups(size), held.group or size
    if groups * width != size:
        x = g.op("Pad", x, g.integers([0, 0, 0, 0, 0, groups * width - size]), mode="edge")
    apart = g.reshape(x, (-1, heads, groups, width))
    low, high = (g.reduce(kind, apart, [3], keepdims=True) for kind in ("ReduceMin", "ReduceMax"))
    scale = g.cast(g.cast(g.op("Div", g.op("Sub", high, low), g.number(held.top)), "f16"), "f32")
    minimum = g.cast(g.cast(low, "f16"), "f32")
    inverse = g.op("Where", g.op("Greater", scale, g.number(0.0)), g.op("Reciprocal", scale), g.number(0.0))
    steps = g.op("Round", g.op("Mul", g.op("Sub", apart, minimum), inverse))
    codes = g.op("Clip", steps, g.number(0.0), g.number(held.top))
    whole = g.reshape(g.op("Add", g.op("Mul", scale, codes), minimum), (-1, heads, groups * width))
    return whole if groups * width == size else g.part(whole, 2, 0, size)
