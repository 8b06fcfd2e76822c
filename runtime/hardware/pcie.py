"""What a PCI Express link carries."""

from __future__ import annotations

__all__ = ["link_rate"]

# Bytes/s of a lane, one way, by generation, line coding taken off.
_LANE = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}


def link_rate(generation: int | None, width: int | None) -> float | None:
    """Bytes/s one way; None where the generation is not known, or there are no lanes."""
    return _LANE[generation] * width if generation in _LANE and width else None
