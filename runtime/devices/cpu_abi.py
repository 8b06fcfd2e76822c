"""What the CPU target's code generator and the CPU device's loader agree on: the order of a region's arrays, and C structures.

Both sides derive the orders from the plan, so that nothing of it has to be stored.
"""

from __future__ import annotations

import ctypes

from mixplan.runtime.plan import Plan, Region

__all__ = ["ABI_VERSION", "CreateArgs", "StepArgs", "attention_layers", "region_constants"]

# Raised with every change of frame.h or of the orders below.
ABI_VERSION = 1


def region_constants(plan: Plan, region: Region) -> tuple[int, ...]:
    """Value indices of the constants (but for fills) that the region's nodes read, ascending: the order of `CreateArgs.constants`."""
    used = {value for node in plan.nodes[region.start : region.stop] for value in node.inputs if value >= 0}
    return tuple(sorted(value for value in used if plan.values[value].kind == "const" and plan.values[value].fill is None))


def attention_layers(plan: Plan, region: Region) -> tuple[int, ...]:
    """Indices into `plan.attention` of the region's attention nodes, ascending: the order of `CreateArgs.kv`."""
    layers = {node.attrs["layer"] for node in plan.nodes[region.start : region.stop] if node.op == "attention"}
    return tuple(sorted(layer for layer in layers if isinstance(layer, int)))


class CreateArgs(ctypes.Structure):
    """mp::CreateArgs of templates/frame.h."""

    _fields_ = (
        ("threads", ctypes.c_int64),
        ("constants", ctypes.POINTER(ctypes.c_void_p)),
        ("arena", ctypes.c_void_p),
        ("scratch", ctypes.c_void_p),
        ("kv", ctypes.POINTER(ctypes.c_void_p)),
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
    )
