"""Reading and writing by index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from mixplan.compiler.constants import Call, Literal
from mixplan.compiler.lowering.context import CannotLower, Context
from mixplan.compiler.lowering.operands import Operand, Ref
from mixplan.compiler.lowering.symbols import product
from mixplan.runtime.dtypes import DType

__all__ = ["TABLE"]

Lowering = Callable[..., Operand]


def _wrap(c: Context, index: Ref) -> Ref:
    """An index as i64. Negative ones count from the end, in the plan as in torch."""
    return c.cast(index, DType.i64)


def take(c: Context, x: Operand, index: Operand, axis: int) -> Operand:
    """x at the indices of one axis."""
    ref, at = c.ref(x), _wrap(c, c.ref(index))
    return c.node("take", [ref, at], ref.dtype, (*ref.shape[:axis], *at.shape, *ref.shape[axis + 1 :]), axis=axis)


def index(c: Context, x: Operand, indices: Sequence[Operand]) -> Operand:
    """x[i0, :, i2]: advanced indexing by integer tensors, which broadcast."""
    ref = c.ref(x)
    given = [(axis, c.ref(i)) for axis, i in enumerate(indices) if i is not None]
    for _, i in given:
        if i.dtype is DType.bool:
            raise CannotLower("indexing by a boolean mask: the result's size depends on the data")
    if not given:
        return ref
    if len(given) == 1:
        return take(c, ref, given[0][1], given[0][0])
    axes = [axis for axis, _ in given]
    if axes != list(range(axes[0], axes[0] + len(axes))):
        # Indices with a gap between them: torch puts the indexed axes first.
        ref = c.permute(ref, [*axes, *(a for a in range(ref.rank) if a not in axes)])
        axes = list(range(len(axes)))
    arrays = [_wrap(c, i) for _, i in given]
    shape = (*ref.shape[: axes[0]], *c.broadcast(*(a.shape for a in arrays)), *ref.shape[axes[-1] + 1 :])
    return c.node("index_nd", [ref, *arrays], ref.dtype, shape, axis=axes[0])


def index_select(c: Context, x: Operand, dim: int, at: Operand) -> Operand:
    """x at a vector of indices of one axis."""
    return take(c, x, at, dim % len(c.shape_of(x)))


def gather(c: Context, x: Operand, dim: int, at: Operand, *, sparse_grad: bool = False) -> Operand:
    """out[i, j] = x[i, index[i, j]] (for dim 1)."""
    ref, where = c.ref(x), _wrap(c, c.ref(at))
    return c.node("gather", [ref, where], ref.dtype, where.shape, axis=dim % max(ref.rank, 1))


def take_along_dim(c: Context, x: Operand, at: Operand, dim: int) -> Operand:
    """gather."""
    return gather(c, x, dim, at)


def scatter(c: Context, x: Operand, dim: int, at: Operand, src: Operand, *, reduce: str | None = None) -> Operand:
    """x with src (a tensor or a number) written at the indices of one axis."""
    if reduce not in (None, "add", "sum"):
        raise CannotLower(f"scatter that combines by {reduce!r}; plain and add have a lowering")
    ref, where = c.ref(x), _wrap(c, c.ref(at))
    if isinstance(src, (bool, int, float)):
        source = c.expand(c.build.fill(src, ref.dtype, (1,) * where.rank), where.shape)
    else:
        source = c.ref(src, ref.dtype)
        for axis, size in enumerate(where.shape):
            # torch reads only as much of src as the index covers.
            if source.shape[axis] != size and isinstance(size, int):
                source = c.slice(source, axis, 0, size)
    mode = "none" if reduce is None else "add"
    return c.node("scatter", [ref, where, source], ref.dtype, ref.shape, axis=dim % max(ref.rank, 1), reduce=mode)


def scatter_add(c: Context, x: Operand, dim: int, at: Operand, src: Operand) -> Operand:
    """scatter that adds."""
    return scatter(c, x, dim, at, src, reduce="add")


def scatter_reduce(c: Context, x: Operand, dim: int, at: Operand, src: Operand, reduce: str, *, include_self: bool = True) -> Operand:
    """scatter that adds, as torch's newer op spells it."""
    if not include_self:
        raise CannotLower("scatter_reduce without include_self")
    return scatter(c, x, dim, at, src, reduce=reduce)


def index_add(c: Context, x: Operand, dim: int, at: Operand, source: Operand, *, alpha: float = 1) -> Operand:
    """x with source's slices added at the indices of one axis."""
    ref = c.ref(x)
    added = c.ref(source, ref.dtype)
    if alpha != 1:
        added = c.binary("mul", added, c.ref(alpha, ref.dtype))
    return c.node("index_add", [ref, _wrap(c, c.ref(at)), added], ref.dtype, ref.shape, axis=dim % ref.rank)


def index_copy(c: Context, x: Operand, dim: int, at: Operand, source: Operand) -> Operand:
    """x with source's slices written at the indices of one axis."""
    ref, added = c.ref(x), c.ref(source)
    axis = dim % ref.rank
    where = c.reshape(_wrap(c, c.ref(at)), tuple(c.shape_of(at)[0] if a == axis else 1 for a in range(ref.rank)))
    where = c.expand(where, added.shape)
    return c.node("scatter", [ref, where, c.cast(added, ref.dtype)], ref.dtype, ref.shape, axis=axis, reduce="none")


def index_put(c: Context, x: Operand, indices: Sequence[Operand], values: Operand, accumulate: bool = False) -> Operand:
    """x[i0, i1, ...] = values, for indices of the first axes; a boolean mask with one value is a `where`."""
    ref = c.ref(x)
    value = c.ref(values, ref.dtype)
    given = [c.ref(i) for i in indices if i is not None]
    if len(given) != len(indices):
        raise CannotLower("writing by index with a whole axis before an indexed one")
    if len(given) == 1 and given[0].dtype is DType.bool:
        if all(d == 1 for d in value.shape) and not accumulate:
            mask = c.reshape(given[0], given[0].shape + (1,) * (ref.rank - given[0].rank))
            return c.node("where", [mask, c.reshape(value, (1,) * ref.rank), ref], ref.dtype, ref.shape)
        raise CannotLower("writing several values by a boolean mask")
    # Several indexed axes are one axis, with the indices combined.
    count = len(given)
    at = _wrap(c, given[0])
    for size, more in zip(ref.shape[1:count], given[1:], strict=True):
        step = c.ref(c.static(size, "an indexed dimension"), DType.i64)
        at = c.binary("add", c.binary("mul", at, step), _wrap(c, more))
    front, rest = product(ref.shape[:count]), ref.shape[count:]
    flat = c.reshape(ref, (front, *rest))
    value = c.expand(_lift(c, value, at.rank + len(rest)), (*at.shape, *rest))
    length = product(at.shape)
    value = c.reshape(value, (length, *rest))
    where = c.expand(c.reshape(at, (length, *(1 for _ in rest))), (length, *rest))
    mode = "add" if accumulate else "none"
    out = c.node("scatter", [flat, where, value], ref.dtype, flat.shape, axis=0, reduce=mode)
    return c.reshape(out, ref.shape)


def _lift(c: Context, x: Ref, rank: int) -> Ref:
    return c.reshape(x, (1,) * (rank - x.rank) + x.shape) if x.rank < rank else x


def select_scatter(c: Context, x: Operand, src: Operand, dim: int, number: int) -> Operand:
    """x with one index of an axis replaced."""
    ref = c.ref(x)
    axis = dim % ref.rank
    piece = c.ref(src, ref.dtype)
    piece = c.reshape(piece, (*piece.shape[:axis], 1, *piece.shape[axis:]))
    return slice_scatter(c, ref, piece, axis, number, number + 1 if number != -1 else None)


def slice_scatter(
    c: Context, x: Operand, src: Operand, dim: int = 0, start: Operand = None, stop: Operand = None, step: int = 1
) -> Operand:
    """x with a slice of a static axis replaced; src broadcasts to the slice."""
    ref = c.ref(x)
    axis = dim % ref.rank
    full = ref.shape[axis]
    low, high = start or 0, stop
    if low == 0 and step == 1 and (high is None or high == full or (isinstance(high, int) and high >= (1 << 62))):
        return c.expand(c.ref(src, ref.dtype), ref.shape)
    size = c.static(full, "a dimension that is written in part")
    span = range(size)[slice(low, high, step)]
    shape = (*ref.shape[:axis], len(span), *ref.shape[axis + 1 :])
    piece = c.expand(_lift(c, c.ref(src, ref.dtype), ref.rank), shape)
    if step == 1:
        parts = []
        if span.start > 0:
            parts.append(c.slice(ref, axis, 0, span.start))
        parts.append(piece)
        if span.stop < size:
            parts.append(c.slice(ref, axis, span.stop, -1))
        return c.cat(parts, axis)
    # Every element of the axis from the old values followed by the new ones.
    order = list(range(size))
    for i, position in enumerate(span):
        order[position] = size + i
    both = c.cat([ref, piece], axis)
    return c.node("take", [both, c.literal(torch.tensor(order))], ref.dtype, ref.shape, axis=axis)


def one_hot(c: Context, x: Operand, classes: int = -1) -> Operand:
    """1 at the index, else 0, along a new last axis."""
    ref = c.ref(x, DType.i64)
    count = c.static(classes, "the number of classes")
    if count < 0:
        raise CannotLower("one_hot without a number of classes")
    lifted = c.reshape(ref, (*ref.shape, 1))
    hit = c.binary("eq", lifted, c.ref(Call(torch.arange, (count,), {}, (count,), torch.int64)), DType.bool)
    return c.cast(hit, DType.i64)


def histc(c: Context, x: Operand, bins: int = 100, low: Operand = 0, high: Operand = 0, **names: Operand) -> Operand:
    """Counts of equal bins over [low, high]; values outside are not counted. What mixtures of experts use to count tokens."""
    low, high = names.get("min", low), names.get("max", high)
    if low == high:
        raise CannotLower("histc whose range depends on the data")
    ref = c.ref(x)
    flat = c.cast(c.reshape(ref, (product(ref.shape),)), DType.f32)
    width = (high - low) / bins
    place = c.unary("floor", c.binary("div", c.binary("sub", flat, c.ref(float(low), DType.f32)), c.ref(float(width), DType.f32)))
    # The upper end belongs to the last bin.
    at_end = c.binary("eq", flat, c.ref(float(high), DType.f32), DType.bool)
    place = c.node("where", [at_end, c.ref(float(bins - 1), DType.f32), place], DType.f32, place.shape)
    hits = c.binary("eq", c.reshape(place, (*place.shape, 1)), c.ref(Literal(torch.arange(bins, dtype=torch.float32))), DType.bool)
    return c.reduce("sum", c.cast(hits, c.dtype), [0], False)


def masked_scatter(c: Context, *_: Any, **__: Any) -> Operand:
    """Refused: which element goes where depends on the data."""
    raise CannotLower("masked_scatter: which element goes where depends on the data")


def searchsorted(c: Context, edges: Operand, x: Operand, *, out_int32: bool = False, right: bool = False, **_: Any) -> Operand:
    """For each x, how many of the sorted edges are below it (or not above it, if right)."""
    ref, lines = c.promote(x, edges)
    if lines.rank != 1:
        raise CannotLower("searchsorted over more than one row of edges")
    below = c.binary("le" if right else "lt", lines, c.reshape(ref, (*ref.shape, 1)), DType.bool)
    return c.cast(c.reduce("sum", c.cast(below, DType.i64), [ref.rank], False), c.dtype)


def bucketize(c: Context, x: Operand, edges: Operand, *, out_int32: bool = False, right: bool = False) -> Operand:
    """searchsorted with its operands exchanged."""
    return searchsorted(c, edges, x, right=right)


TABLE: dict[str, Lowering] = {
    "aten.index": index,
    "aten._unsafe_index": index,
    "aten.index_select": index_select,
    "aten.gather": gather,
    "aten.take_along_dim": take_along_dim,
    "aten.scatter": scatter,
    "aten.scatter_add": scatter_add,
    "aten.scatter_reduce": scatter_reduce,
    "aten.index_add": index_add,
    "aten.index_copy": index_copy,
    "aten.index_put": index_put,
    "aten._unsafe_index_put": index_put,
    "aten.select_scatter": select_scatter,
    "aten.slice_scatter": slice_scatter,
    "aten.one_hot": one_hot,
    "aten.histc": histc,
    "aten.masked_scatter": masked_scatter,
    "aten.searchsorted": searchsorted,
    "aten.bucketize": bucketize,
}
