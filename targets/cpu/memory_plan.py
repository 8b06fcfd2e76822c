"""Places the arena's buffers: two buffers share memory where no op needs both.

Buffers are taken in the order in which ops first write them, and go to the smallest free gap that holds them; the arena grows only
where there is none. Sizes are those of the largest step, so that offsets are constants of the generated code.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence

from mixplan.targets.cpu.codegen.builder import Op
from mixplan.targets.cpu.codegen.ref import Buffer

__all__ = ["ALIGNMENT", "lifetimes", "plan_memory"]

ALIGNMENT = 64  # a cache line, and the widest vector


def _round_up(size: int) -> int:
    return max(-(-size // ALIGNMENT), 1) * ALIGNMENT


def lifetimes(ops: Sequence[Op]) -> dict[Buffer, tuple[int, int]]:
    """First and last op that touches each arena buffer, in order of the first."""
    spans: dict[Buffer, tuple[int, int]] = {}
    for number, op in enumerate(ops):
        for operand in op.operands:
            if operand.buffer.kind == "arena":
                first, _ = spans.get(operand.buffer, (number, number))
                spans[operand.buffer] = (first, number)
    return spans


def plan_memory(ops: Sequence[Op]) -> int:
    """Set every arena buffer's offset; returns the arena's size in bytes."""
    spans = lifetimes(ops)
    dying: dict[int, list[Buffer]] = {}
    for buffer, (_, last) in spans.items():
        dying.setdefault(last, []).append(buffer)
    starting: dict[int, list[Buffer]] = {}
    for buffer, (first, _) in spans.items():
        starting.setdefault(first, []).append(buffer)
    free: list[tuple[int, int]] = []  # (offset, size), by offset, never adjacent
    end = 0
    for number in range(len(ops)):
        for buffer in starting.get(number, ()):
            end = _place(buffer, free, end)
        for buffer in dying.get(number, ()):
            _release(free, buffer.offset, _round_up(buffer.nbytes))
    return end


def _place(buffer: Buffer, free: list[tuple[int, int]], end: int) -> int:
    size = _round_up(buffer.nbytes)
    fits = [(gap, offset) for offset, gap in free if gap >= size]
    if fits:
        gap, offset = min(fits)
        free.remove((offset, gap))
        if gap > size:
            insort(free, (offset + size, gap - size))
        buffer.offset = offset
        return end
    if free and sum(free[-1]) == end:
        # The last gap touches the end: grow from there.
        buffer.offset = free.pop()[0]
    else:
        buffer.offset = end
    return buffer.offset + size


def _release(free: list[tuple[int, int]], offset: int, size: int) -> None:
    for other in list(free):
        start, length = other
        if start + length == offset:
            free.remove(other)
            offset, size = start, size + length
        elif offset + size == start:
            free.remove(other)
            size += length
    insort(free, (offset, size))
