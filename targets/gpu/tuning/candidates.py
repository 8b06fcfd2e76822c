"""Which tiles are tried: from the best so far, one axis at a time, half and twice of it."""

from __future__ import annotations

from dataclasses import replace

from mixplan.targets.gpu.tile import Tile

__all__ = ["AXES", "neighbours"]

AXES = ("n", "k", "m", "warps", "stages", "split")
"""In the order in which they are tried: what changes the work of a program most comes first."""

_LIMITS = {"n": (32, 256), "k": (32, 256), "m": (16, 256), "warps": (2, 16), "stages": (1, 5), "split": (1, 32)}
# By kind of work: what may vary.
_FREE = {
    "decode": ("n", "k", "warps", "stages", "split"),
    "small": AXES,
    "large": ("n", "k", "m", "warps", "stages"),
    "attention decode": ("n", "warps", "stages", "split"),
    "attention prefill": ("n", "m", "warps", "stages"),
}


def neighbours(kind: str, tile: Tile, axis: str) -> list[Tile]:
    """Tiles that differ from `tile` in one axis; none where that does not vary for this kind of work (see Work.kind)."""
    if axis not in _FREE[kind]:
        return []
    low, high = _LIMITS[axis]
    if kind == "attention decode" and axis == "split":
        low = 2  # parts are merged by a launch of its own
    if kind.startswith("attention") and axis in ("n", "m"):
        low = 16
    here = getattr(tile, axis)
    sizes = (here - 1, here + 1) if axis == "stages" else (here // 2, here * 2)
    return [replace(tile, **{axis: size}) for size in sizes if low <= size <= high]
