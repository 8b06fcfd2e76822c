"""The least time that a machine's ceilings allow for a cost (the roofline of Williams, Waterman and Patterson, CACM 52(4), 2009)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mixplan.runtime.cost.count import Cost

__all__ = ["Limits", "limit_seconds"]


@dataclass(frozen=True)
class Limits:
    """Ceilings of the threads that run the plan. bandwidth(n): bytes/s that can be read from a working set of n bytes.

    int8, bf16, f32: peak operations/s; 0 where unknown, which leaves those operations out of the limit.
    """

    bandwidth: Callable[[float], float]
    int8: float = 0.0
    bf16: float = 0.0
    f32: float = 0.0


def limit_seconds(cost: Cost, limits: Limits, working_set: float | None = None) -> float:
    """Seconds that `cost` takes at least: the longer of moving and computing.

    working_set: bytes that the whole step reads of weights and KV cache, which decides where they come from; default, those of `cost`.
    Activations count as read from a working set of their own size: they were written just before.
    """
    memory, passed = cost.memory_bytes, cost.activation_bytes
    moving = memory / limits.bandwidth(working_set or memory) if memory else 0.0
    passing = passed / limits.bandwidth(passed) if passed else 0.0
    parts = ((cost.int8_ops, limits.int8), (cost.bf16_ops, limits.bf16), (cost.f32_ops, limits.f32))
    return max(moving, passing, sum(ops / peak for ops, peak in parts if peak > 0))
