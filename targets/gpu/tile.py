"""The shape in which a kernel cuts its work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["Tile", "Tiles"]


@dataclass(frozen=True)
class Tile:
    """BLOCK_M, BLOCK_N, BLOCK_K, the number of splits of the columns, warps and pipeline stages."""

    m: int
    n: int
    k: int
    split: int = 1
    warps: int = 4
    stages: int = 3

    def __str__(self) -> str:
        shape = "x".join(str(size) for size in (self.m, self.n, self.k) if size)
        return f"{shape}, {self.split} splits, {self.warps} warps, {self.stages} stages"


class Tiles(Protocol):
    """Tiles by what they are for (see tiles.py); a dict is one."""

    def get(self, key: str, default: Tile, /) -> Tile:
        """The tile, `default` (the table's) where none is known."""
