"""References: how a value lies in memory. Views (reshape, slice, permute, expand, flip) are other references to the same buffer."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from mixplan.runtime.dtypes import DType
from mixplan.targets.cpu.codegen.poly import ONE, ZERO, Poly, product
from mixplan.targets.cpu.codegen.types import literal

__all__ = ["Buffer", "Ref", "broadcast", "collapse", "contiguous_strides", "reshape"]

# Any two different sizes of a real step differ at these, so comparing polynomials here orders them.
_LARGE_T, _LARGE_R = 1_000_003, 999_983


@dataclass(eq=False)
class Buffer:
    """One piece of memory.

    index: of the constant, region input, region output or KV storage. The memory planner sets the `offset` of those in the arena.
    """

    kind: Literal["arena", "const", "input", "output", "kv", "literal"]
    index: int = 0
    nbytes: int = 0
    name: str = ""
    literal: str = ""
    offset: int = field(default=-1)


@dataclass(frozen=True)
class Ref:
    """A strided array: element (i0, i1, ..) of `dtype` stands at offset + sum(i * stride), in elements, from the buffer's start."""

    buffer: Buffer
    dtype: DType
    shape: tuple[Poly, ...]
    strides: tuple[Poly, ...]
    offset: Poly = ZERO

    @property
    def size(self) -> Poly:
        """Number of elements."""
        return product(self.shape)

    @property
    def literal(self) -> str:
        """The C++ literal of a constant whose elements are all the same, "" otherwise."""
        return self.buffer.literal

    @property
    def contiguous(self) -> bool:
        """Whether the elements lie one after the other (dimensions of size 1 do not count)."""
        if self.buffer.kind == "literal":
            return False
        expected = contiguous_strides(self.shape)
        return all(n == ONE or a == b for n, a, b in zip(self.shape, self.strides, expected, strict=True))

    def view(self, shape: tuple[Poly, ...], strides: tuple[Poly, ...], offset: Poly | int = 0) -> Ref:
        """Another view, whose first element is `offset` elements after this one's."""
        return replace(self, shape=shape, strides=strides, offset=self.offset + offset)

    @staticmethod
    def fill(value: float | int | bool | str, dtype: DType, shape: tuple[Poly, ...]) -> Ref:
        """A constant whose elements are all `value`."""
        return Ref(Buffer("literal", literal=literal(value, dtype)), dtype, shape, (ZERO,) * len(shape))


def contiguous_strides(shape: tuple[Poly, ...]) -> tuple[Poly, ...]:
    """Row-major strides, in elements."""
    strides = []
    step = ONE
    for n in reversed(shape):
        strides.append(step)
        step = step * n
    return tuple(reversed(strides))


def broadcast(ref: Ref, shape: tuple[Poly, ...]) -> Ref:
    """`ref` seen with the numpy-broadcast `shape`: new leading dimensions and dimensions of size 1 get stride 0."""
    lead = len(shape) - len(ref.shape)
    strides = [ZERO] * lead
    for n, stride, wanted in zip(ref.shape, ref.strides, shape[lead:], strict=True):
        strides.append(ZERO if n == ONE and wanted != ONE else stride)
    return replace(ref, shape=shape, strides=tuple(strides))


def collapse(shape: tuple[Poly, ...], all_strides: list[tuple[Poly, ...]]) -> tuple[list[Poly], list[list[Poly]]]:
    """Drop dimensions of size 1 and merge neighbours that every operand walks as one. Returns the shape and each operand's strides.

    The result has at least one dimension.
    """
    sizes: list[Poly] = []
    strides: list[list[Poly]] = [[] for _ in all_strides]
    for axis, n in enumerate(shape):
        if n == ONE:
            continue
        here = [operand[axis] for operand in all_strides]
        if sizes and all(s[-1] == now * n for s, now in zip(strides, here, strict=True)):
            sizes[-1] = sizes[-1] * n
            for s, now in zip(strides, here, strict=True):
                s[-1] = now
        else:
            sizes.append(n)
            for s, now in zip(strides, here, strict=True):
                s.append(now)
    if not sizes:
        return [ONE], [[ZERO] for _ in all_strides]
    return sizes, strides


def reshape(ref: Ref, shape: tuple[Poly, ...]) -> Ref | None:
    """`ref` with another shape of the same size, without moving anything; None where its strides do not allow it."""
    if ref.buffer.kind == "literal":
        return replace(ref, shape=shape, strides=(ZERO,) * len(shape))
    sizes, (strides,) = collapse(ref.shape, [ref.strides])
    out: list[Poly] = []
    axis = 0
    remaining: list[Poly] = []  # the new dimensions that together make up sizes[axis]
    for n in shape:
        if n == ONE:
            remaining.append(n)
            continue
        remaining.append(n)
        if axis >= len(sizes):
            return None
        block = product(remaining)
        if block == sizes[axis]:
            out.extend(stride * strides[axis] for stride in contiguous_strides(tuple(remaining)))
            remaining, axis = [], axis + 1
        elif block.at(_LARGE_T, _LARGE_R) > sizes[axis].at(_LARGE_T, _LARGE_R):
            return None
    if product(remaining) != ONE or (axis < len(sizes) and sizes[axis:] != [ONE]):
        return None
    out.extend(ONE for _ in remaining)
    return ref.view(shape, tuple(out))
