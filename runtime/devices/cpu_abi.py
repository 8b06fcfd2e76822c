"""What the CPU target's code generator and the CPU device's loader agree on: the order of a region's arrays, and C structures.

Both sides derive the orders from the plan, so that nothing of it has to be stored.
"""

from __future__ import annotations

import ctypes
import hashlib
import json

from mixplan.runtime.dtypes import DType
from mixplan.runtime.plan import AttentionLayer, Attr, Plan, Region, Shape, Sym

__all__ = [
    "ABI_VERSION",
    "CreateArgs",
    "DecodeArgs",
    "DrawArgs",
    "StepArgs",
    "attention_layers",
    "logits_columns",
    "logits_output",
    "region_constants",
    "region_fingerprint",
]

# Raised with every change of frame.h or of the orders below.
ABI_VERSION = 4


def region_constants(plan: Plan, region: Region) -> tuple[int, ...]:
    """Value indices of the constants (but for fills) that the region's nodes read, ascending: the order of `CreateArgs.constants`."""
    used = {value for node in plan.nodes[region.start : region.stop] for value in node.inputs if value >= 0}
    return tuple(sorted(value for value in used if plan.values[value].kind == "const" and plan.values[value].fill is None))


def attention_layers(plan: Plan, region: Region) -> tuple[int, ...]:
    """Indices into `plan.attention` of the region's attention nodes, ascending: the order of `CreateArgs.kv`."""
    layers = {node.attrs["layer"] for node in plan.nodes[region.start : region.stop] if node.op == "attention"}
    return tuple(sorted(layer for layer in layers if isinstance(layer, int)))


def logits_output(plan: Plan, region: Region) -> int:
    """Which of the region's outputs holds the logits [1, R, V], float32; -1 where none does."""
    logits = plan.outputs[0] if plan.outputs else -1
    if logits not in region.outputs:
        return -1
    value = plan.values[logits]
    rows = len(value.shape) > 1 and value.shape[-2] == Sym("R") and all(dim == 1 for dim in value.shape[:-2])
    return region.outputs.index(logits) if rows and value.dtype is DType.f32 and isinstance(value.shape[-1], int) else -1


def logits_columns(plan: Plan, region: Region) -> int:
    """V where the region makes the logits, else 0."""
    at = logits_output(plan, region)
    columns = plan.values[region.outputs[at]].shape[-1] if at >= 0 else 0
    return columns if isinstance(columns, int) else 0


def region_fingerprint(plan: Plan, region: Region) -> int:
    """63 bits of SHA-256 over all that a region's kernels depend on: ops, shapes, attributes and limits; no names and no weights.

    Equal for the plan that is compiled and for the same plan read back, where numbers may have changed their Python type.
    """
    nodes = plan.nodes[region.start : region.stop]
    used = sorted({value for node in nodes for value in (*node.inputs, *node.outputs) if value >= 0})
    shapes: dict[Shape, str] = {}  # the same ones again and again
    for i in used:
        if plan.values[i].shape not in shapes:
            shapes[plan.values[i].shape] = str(plan.values[i].shape)
    parts = [
        [[node.op, node.inputs, node.outputs, sorted((key, _text(attr)) for key, attr in node.attrs.items())] for node in nodes],
        [[i, plan.values[i].kind, plan.values[i].dtype.value, shapes[plan.values[i].shape], _text(plan.values[i].fill)] for i in used],
        [region.inputs, region.outputs, plan.max_step_tokens],
        [_kept(layer) for layer in plan.attention],
    ]
    return int.from_bytes(hashlib.sha256(json.dumps(parts).encode()).digest()[:8], "little") >> 1


def _kept(layer: AttentionLayer) -> list[object]:
    heads = [[held.value for held in layer.heads]] if layer.heads else []
    return [layer.kv_heads, layer.k_dim, layer.v_dim, layer.dtype.value, layer.window, *heads]


def _text(attr: Attr | None) -> str:
    if isinstance(attr, tuple | list):
        return f"({','.join(map(_text, attr))})"
    if isinstance(attr, int | float) and not isinstance(attr, bool):
        whole = isinstance(attr, int) or attr.is_integer()
        return str(int(attr)) if whole else repr(attr)
    return str(attr)


class CreateArgs(ctypes.Structure):
    """mp::CreateArgs of templates/frame.h."""

    _fields_ = (
        ("threads", ctypes.c_int64),
        ("constants", ctypes.POINTER(ctypes.c_void_p)),
        ("arena", ctypes.c_void_p),
        ("scratch", ctypes.c_void_p),
        ("kv", ctypes.POINTER(ctypes.c_void_p)),
        ("kv_stride", ctypes.c_int64),
        ("pages", ctypes.c_int64),
        ("max_pages", ctypes.c_int64),
        ("profile", ctypes.c_int64),
    )


class StepArgs(ctypes.Structure):
    """mp::StepArgs of templates/frame.h."""

    _fields_ = (
        ("tokens", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("positions", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("lengths", ctypes.c_void_p),
        ("block_tables", ctypes.c_void_p),
        ("inputs", ctypes.POINTER(ctypes.c_void_p)),
        ("outputs", ctypes.POINTER(ctypes.c_void_p)),
        ("best", ctypes.c_void_p),
        ("maxima", ctypes.c_void_p),
        ("nanoseconds", ctypes.c_int64),
    )


class DrawArgs(ctypes.Structure):
    """mp::Draw of templates/kernels/draw.h."""

    _fields_ = (
        ("temperature", ctypes.c_double),
        ("top_p", ctypes.c_double),
        ("min_p", ctypes.c_double),
        ("top_k", ctypes.c_int64),
        ("uniforms", ctypes.c_void_p),
    )


class DecodeArgs(ctypes.Structure):
    """mp::DecodeArgs of templates/frame.h."""

    _fields_ = (
        ("step", StepArgs),
        ("ids", ctypes.c_void_p),
        ("positions", ctypes.c_void_p),
        ("lengths", ctypes.c_void_p),
        ("step_positions", ctypes.c_void_p),
        ("step_lengths", ctypes.c_void_p),
        ("stops", ctypes.c_void_p),
        ("stop_count", ctypes.c_int64),
        ("steps", ctypes.c_int64),
        ("budget", ctypes.c_int64),
        ("found", ctypes.c_void_p),
        ("done", ctypes.c_int64),
        ("draws", ctypes.c_void_p),
        ("scratch", ctypes.c_void_p),
    )
