"""Ops that move elements without computing: views, permutations, slices, concatenations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mixplan.compiler.lowering.context import CannotLower, Context
from mixplan.compiler.lowering.operands import Operand, Ref
from mixplan.compiler.lowering.symbols import mul_dims
from mixplan.runtime.plan import Dim

__all__ = ["TABLE"]

Lowering = Callable[..., Operand]
_END = (1 << 63) - 1


def view(c: Context, x: Operand, *_: Any, **__: Any) -> Operand:
    """view, reshape, flatten, unsqueeze, squeeze: the result's shape says it all."""
    return c.reshape(c.ref(x), c.shape)


def transpose(c: Context, x: Operand, a: int, b: int) -> Operand:
    """Two axes exchanged."""
    ref = c.ref(x)
    axes = list(range(ref.rank))
    a, b = a % ref.rank, b % ref.rank
    axes[a], axes[b] = axes[b], axes[a]
    return c.permute(ref, axes)


def t(c: Context, x: Operand) -> Operand:
    """A matrix transposed; vectors stay."""
    ref = c.ref(x)
    return c.permute(ref, range(ref.rank)[::-1])


def permute(c: Context, x: Operand, dims: Sequence[int]) -> Operand:
    """All axes in a new order."""
    ref = c.ref(x)
    return c.permute(ref, [d % ref.rank for d in dims])


def movedim(c: Context, x: Operand, source: Any, destination: Any) -> Operand:
    """Some axes moved to new places, the others in their order."""
    ref = c.ref(x)
    sources = [s % ref.rank for s in ([source] if isinstance(source, int) else source)]
    places = [d % ref.rank for d in ([destination] if isinstance(destination, int) else destination)]
    rest = iter(a for a in range(ref.rank) if a not in sources)
    return c.permute(ref, [sources[places.index(a)] if a in places else next(rest) for a in range(ref.rank)])


def expand(c: Context, x: Operand, *_: Any, **__: Any) -> Operand:
    """Size-1 axes repeated, new axes in front."""
    ref, shape = c.ref(x), c.shape
    if len(shape) > ref.rank:
        ref = c.reshape(ref, (1,) * (len(shape) - ref.rank) + ref.shape)
    return c.expand(ref, shape)


def slice_(c: Context, x: Operand, dim: int = 0, start: Operand = None, stop: Operand = None, step: int = 1) -> Operand:
    """x[start:stop:step] with Python's meaning of negative and missing bounds."""
    ref = c.ref(x)
    axis = dim % ref.rank
    size = ref.shape[axis]
    begin = 0 if start is None else start
    end = _END if stop is None else stop
    if end == size or (isinstance(end, int) and end >= _END):
        end = size if isinstance(size, int) else -1
        to_end = True
    else:
        to_end = False
    if isinstance(size, int):
        low = _clip(c.static(begin, "a slice's start"), size)
        high = _clip(c.static(end, "a slice's stop"), size)
        return c.slice(ref, axis, low, -1 if high == size else max(low, high), step)
    if not isinstance(begin, int) or not isinstance(end, int):
        raise CannotLower(f"a slice from {begin} to {end} of a dimension of {size}")
    if begin >= 0 and (to_end or end >= 0):
        if not to_end and c.shape[axis] != max(-(-(end - begin) // step), 0):
            raise CannotLower(f"a slice to {end} of a dimension that may be shorter")
        return c.slice(ref, axis, begin, -1 if to_end else end, step)
    if step != 1:
        raise CannotLower("a strided slice with a negative bound of a dimension that depends on the step")
    # Counted from the end of an unknown length: reversed, it is counted from the start.
    back = c.node("flip", [ref], ref.dtype, ref.shape, axes=(axis,))
    if begin < 0:
        back = c.slice(back, axis, 0 if to_end else -end, -begin)
        return c.node("flip", [back], ref.dtype, back.shape, axes=(axis,))
    back = c.slice(back, axis, -end, -1)
    kept = c.node("flip", [back], ref.dtype, back.shape, axes=(axis,))
    return c.slice(kept, axis, begin, -1)


def _clip(bound: int, size: int) -> int:
    return min(max(bound + size if bound < 0 else bound, 0), size)


def select(c: Context, x: Operand, dim: int, index: Operand) -> Operand:
    """One index of an axis, the axis gone."""
    ref = c.ref(x)
    axis = dim % ref.rank
    number = c.static(index, "a selected index")
    stop = None if number == -1 else number + 1
    sliced = slice_(c, ref, axis, number, stop) if number < 0 else c.slice(ref, axis, number, number + 1)
    return c.reshape(sliced, (*ref.shape[:axis], *ref.shape[axis + 1 :]))


def cat(c: Context, tensors: Sequence[Operand], dim: int = 0) -> Operand:
    """Tensors one after another; empty ones are dropped, as torch does."""
    refs = [c.ref(x, c.dtype) for x in tensors]
    rank = max(r.rank for r in refs)
    axis = dim % max(rank, 1)
    kept = [r for r in refs if r.rank == rank and r.shape[axis] != 0]
    return c.cat(kept or refs[:1], axis)


def stack(c: Context, tensors: Sequence[Operand], dim: int = 0) -> Operand:
    """Tensors of one shape along a new axis."""
    refs = [c.ref(x, c.dtype) for x in tensors]
    axis = dim % (refs[0].rank + 1)
    shape = (*refs[0].shape[:axis], 1, *refs[0].shape[axis:])
    return c.cat([c.reshape(r, shape) for r in refs], axis)


def _pieces(c: Context, ref: Ref, axis: int, sizes: Sequence[int]) -> list[Operand]:
    out: list[Operand] = []
    start = 0
    for size in sizes:
        out.append(c.slice(ref, axis, start, start + size))
        start += size
    return out


def split(c: Context, x: Operand, size: Any, dim: int = 0) -> Operand:
    """Consecutive pieces of one size, or of listed sizes."""
    ref = c.ref(x)
    axis = dim % ref.rank
    total = c.static(ref.shape[axis], "a dimension that is split")
    if isinstance(size, (list, tuple)):
        return _pieces(c, ref, axis, [c.static(s, "a split's size") for s in size])
    step = c.static(size, "a split's size")
    return _pieces(c, ref, axis, [min(step, total - start) for start in range(0, total, step)])


def chunk(c: Context, x: Operand, chunks: int, dim: int = 0) -> Operand:
    """That many pieces, the last one perhaps shorter."""
    ref = c.ref(x)
    total = c.static(ref.shape[dim % ref.rank], "a dimension that is cut into chunks")
    return split(c, ref, -(-total // chunks), dim)


def unbind(c: Context, x: Operand, dim: int = 0) -> Operand:
    """All indices of an axis, as a list."""
    ref = c.ref(x)
    count = c.static(ref.shape[dim % ref.rank], "an unbound dimension")
    return [select(c, ref, dim, i) for i in range(count)]


def repeat_interleave(c: Context, x: Operand, repeats: Operand, dim: int | None = None, **_: Any) -> Operand:
    """Each element of an axis, repeated in place."""
    ref = c.ref(x)
    times = c.static(repeats, "the number of repeats")
    if dim is None:
        raise CannotLower("repeat_interleave without a dim")
    axis = dim % ref.rank
    lifted = c.reshape(ref, (*ref.shape[: axis + 1], 1, *ref.shape[axis + 1 :]))
    wide = c.expand(lifted, (*ref.shape[: axis + 1], times, *ref.shape[axis + 1 :]))
    return c.reshape(wide, (*ref.shape[:axis], mul_dims(ref.shape[axis], times), *ref.shape[axis + 1 :]))


def repeat(c: Context, x: Operand, repeats: Sequence[Operand]) -> Operand:
    """The whole tensor tiled along its axes."""
    ref = c.ref(x)
    if len(repeats) > ref.rank:
        ref = c.reshape(ref, (1,) * (len(repeats) - ref.rank) + ref.shape)
    lifted: list[Dim] = []
    wide: list[Dim] = []
    for times, size in zip(repeats, ref.shape, strict=True):
        times = c.dim(times)
        lifted += [1, size]
        wide += [times, size]
    if all(a == b for a, b in zip(lifted, wide, strict=True)):
        return ref
    shape = tuple(mul_dims(c.dim(times), size) for times, size in zip(repeats, ref.shape, strict=True))
    return c.reshape(c.expand(c.reshape(ref, tuple(lifted)), tuple(wide)), shape)


def flip(c: Context, x: Operand, dims: Sequence[int]) -> Operand:
    """Axes reversed."""
    ref = c.ref(x)
    return c.node("flip", [ref], ref.dtype, ref.shape, axes=tuple(sorted(d % ref.rank for d in dims)))


def roll(c: Context, x: Operand, shifts: Any, dims: Any = ()) -> Operand:
    """Elements moved along static axes, those that fall off coming in again."""
    ref = c.ref(x)
    pairs = zip([shifts] if isinstance(shifts, int) else shifts, [dims] if isinstance(dims, int) else dims, strict=True)
    for shift, dim in pairs:
        axis = dim % ref.rank
        size = c.static(ref.shape[axis], "a rolled dimension")
        cut = -shift % size
        if cut:
            ref = c.cat([c.slice(ref, axis, cut, -1), c.slice(ref, axis, 0, cut)], axis)
    return ref


def pad(c: Context, x: Operand, pads: Sequence[int], value: Operand = 0.0, **_: Any) -> Operand:
    """Constant padding; torch lists the last axis first. Negative padding cuts."""
    ref = c.ref(x)
    both = [[0, 0] for _ in range(ref.rank)]
    for i in range(len(pads) // 2):
        both[ref.rank - 1 - i] = [c.static(pads[2 * i], "padding"), c.static(pads[2 * i + 1], "padding")]
    for axis, (low, high) in enumerate(both):
        if low < 0:
            ref = c.slice(ref, axis, -low, -1)
        if high < 0:
            ref = slice_(c, ref, axis, 0, high)
    flat = tuple(max(p, 0) for pair in both for p in pair)
    if not any(flat):
        return ref
    return c.node("pad", [ref], ref.dtype, c.shape, pads=flat, value=float(value or 0))


def constant_pad(c: Context, x: Operand, pads: Sequence[int], mode: str = "constant", value: Operand = None) -> Operand:
    """aten.pad: only constant padding."""
    if mode != "constant":
        raise CannotLower(f"padding of mode {mode!r}; constant has a lowering")
    return pad(c, x, pads, 0.0 if value is None else value)


def triangle(op: str) -> Lowering:
    """tril and triu."""

    def lower(c: Context, x: Operand, diagonal: int = 0) -> Operand:
        ref = c.ref(x)
        return c.node(op, [ref], ref.dtype, ref.shape, diagonal=diagonal)

    return lower


_VIEWS = "view reshape _unsafe_view flatten unflatten unsqueeze squeeze view_as reshape_as ravel"

TABLE: dict[str, Lowering] = {
    **{f"aten.{name}": view for name in _VIEWS.split()},
    "aten.transpose": transpose,
    "aten.swapaxes": transpose,
    "aten.swapdims": transpose,
    "aten.t": t,
    "aten.numpy_T": t,
    "aten.mT": lambda c, x: transpose(c, x, -1, -2),
    "aten.permute": permute,
    "aten.movedim": movedim,
    "aten.moveaxis": movedim,
    "aten.expand": expand,
    "aten.expand_as": expand,
    "aten.broadcast_to": expand,
    "aten.slice": slice_,
    "aten.narrow": lambda c, x, dim, start, length: slice_(c, x, dim, start, start + length),
    "aten.select": select,
    "aten.cat": cat,
    "aten.concat": cat,
    "aten.stack": stack,
    "aten.split": split,
    "aten.split_with_sizes": split,
    "aten.tensor_split": chunk,
    "aten.chunk": chunk,
    "aten.unsafe_chunk": chunk,
    "aten.unsafe_split": split,
    "aten.unbind": unbind,
    "aten.repeat_interleave.self_int": repeat_interleave,
    "aten.repeat": repeat,
    "aten.tile": repeat,
    "aten.flip": flip,
    "aten.roll": roll,
    "aten.constant_pad_nd": pad,
    "aten.pad": constant_pad,
    "aten.tril": triangle("tril"),
    "aten.triu": triangle("triu"),
}
