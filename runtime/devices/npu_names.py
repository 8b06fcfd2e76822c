"""Names of inputs, outputs and dims of a region's ONNX model, which the compile half and the device share.

T: tokens of the step. R: rows whose logits are wanted. L: tokens of the step's sequences that are in the KV cache already, of all
sequences together. S: L + T.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mixplan.runtime.dtypes import DType
from mixplan.runtime.errors import UnsupportedError
from mixplan.runtime.plan import AttentionLayer, Dim, Node, Plan, Region

__all__ = [
    "DISTANCE",
    "EXTENTS",
    "Mask",
    "dim_name",
    "is_past",
    "layer_names",
    "mask_of",
    "past_kind",
    "region_attention",
    "value_names",
    "whole",
]

DISTANCE = "attention_distance"
"""f32 [T, S]: position of the query less that of the key, for ALiBi."""

EXTENTS = {"step_tokens": "T", "step_rows": "R"}
"""Inputs that are nothing but as long as a dim, i64 [T] or [R]: for a region that makes it of nothing and reads no value that has it."""

_ODD = re.compile(r"[^A-Za-z0-9_.]")


@dataclass(frozen=True)
class Mask:
    """Which keys a query sees. `width` is the window's or the chunk's, 0 for all up to itself."""

    kind: str
    width: int

    @property
    def name(self) -> str:
        """The model's input, f32 [T, S]: 0 where a key is seen, a large negative number where it is not."""
        return "attention_bias" if not self.width else f"attention_bias_{self.kind}_{self.width}"


def whole(node: Node, name: str) -> int:
    """An attribute that is a whole number, 0 where it is left out; plans that are loaded have no others."""
    value = node.attrs.get(name, 0)
    assert isinstance(value, int), f"{node.name}: {name} is {value!r}"
    return value


def mask_of(node: Node) -> Mask:
    """The mask of an attention node."""
    window = whole(node, "window")
    if node.attrs.get("mask", "causal") == "chunked":
        return Mask("chunk", window)
    return Mask("window", window)


def dim_name(dim: Dim) -> int | str:
    """A dim of the model: its size, or a name. Those that T or R decide alone have its name."""
    if isinstance(dim, int):
        return dim
    return dim.sym if dim.mul == 1 and not dim.add else f"{dim.mul}{dim.sym}{dim.add:+d}"


def layer_names(layer: int) -> tuple[str, str, str, str]:
    """Names of an attention layer's past keys and values [L, heads, size] and new keys and values [T, heads, size]."""
    return f"past_key_{layer}", f"past_value_{layer}", f"present_key_{layer}", f"present_value_{layer}"


def is_past(name: str) -> bool:
    """Whether an input holds what was in the KV cache."""
    return name.startswith(("past_key_", "past_value_"))


def past_kind(layer: AttentionLayer) -> str:
    """The element type in which a layer's keys and values go in and out: f16 where the cache holds that throughout, else f32."""
    return "f16" if all(held.keys is DType.f16 and held.values is DType.f16 for held, _ in layer.runs) else "f32"


def region_attention(plan: Plan, region: Region) -> dict[int, Node]:
    """A region's attention nodes, by layer."""
    nodes = (node for node in plan.nodes[region.start : region.stop] if node.op == "attention")
    return {whole(node, "layer"): node for node in nodes}


def value_names(plan: Plan, region: Region) -> dict[int, str]:
    """What the region's inputs and outputs are called in its model. The plan's first output is "logits", where it is among them."""
    names: dict[int, str] = {}
    for index in (*region.inputs, *region.outputs):
        names[index] = "logits" if plan.outputs[:1] == (index,) else _ODD.sub("_", plan.values[index].name)
    if len(set(names.values())) != len(names):
        raise UnsupportedError(f"Two values at the borders of region {region.name!r} have one name: {sorted(names.values())}.")
    return names
