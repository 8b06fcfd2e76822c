"""Values as kernels see them: an element offset into a buffer, and a stride for each dim. Slices, permutations and most reshapes move no
data: they are other views of the same buffer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from mixplan.runtime.dtypes import DType
from mixplan.runtime.plan import Dim, Shape, Sym
from mixplan.targets.gpu.lower.arena import Buffer

__all__ = ["Refused", "View", "broadcast", "contiguous_strides", "heads_of", "outer_dims", "reshaped", "rows_of"]


class Refused(Exception):  # noqa: N818 - a verdict, not a failure
    """A node that the kernels cannot run; the message is the reason, for the report."""


@dataclass(frozen=True)
class View:
    """home: a buffer of the arena, or the index of a constant. offset and strides in elements; a dim that is 1 has stride 0."""

    home: Buffer | int
    dtype: DType
    shape: Shape
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def contiguous(self) -> bool:
        """Whether the elements follow one another from `offset` on."""
        return self.strides == contiguous_strides(self.shape)


def contiguous_strides(shape: Shape) -> tuple[int, ...]:
    """Strides of a contiguous array. Refused where a dim of more than one stands before one that varies with the step."""
    strides, size = [], 1
    fixed = True
    for dim in reversed(shape):
        if dim == 1:
            strides.append(0)
            continue
        if not fixed:
            raise Refused("a dim of fixed size stands before the tokens")
        strides.append(size)
        if isinstance(dim, Sym):
            fixed = False
        else:
            size *= dim
    return tuple(reversed(strides))


def _dims(view: View) -> list[tuple[Dim, int]]:
    """(size, stride) of each dim that is not 1, neighbours that follow one another merged."""
    out: list[tuple[Dim, int]] = []
    for size, stride in zip(view.shape, view.strides, strict=True):
        if size == 1:
            continue
        if out and isinstance(size, int) and isinstance(out[-1][0], int) and out[-1][1] == size * stride:
            out[-1] = (out[-1][0] * size, stride)
        else:
            out.append((size, stride))
    return out


def reshaped(view: View, shape: Shape) -> View | None:
    """The view in another shape, None where its elements would have to move."""
    if view.contiguous:
        return replace(view, shape=shape, strides=contiguous_strides(shape))
    left = _dims(view)
    strides: list[int] = []
    for dim in shape:
        if dim == 1:
            strides.append(0)
            continue
        if not left:
            return None
        size, stride = left[0]
        if dim == size:
            strides.append(stride)
            left.pop(0)
        elif isinstance(dim, int) and isinstance(size, int) and size % dim == 0:
            # The first part of a dim that is split.
            strides.append(size // dim * stride)
            left[0] = (size // dim, stride)
        else:
            return None
    return replace(view, shape=shape, strides=tuple(strides)) if not left else None


def broadcast(view: View, shape: Shape) -> View:
    """The view stretched to `shape` by numpy's rules."""
    missing = len(shape) - len(view.shape)
    strides = (0,) * missing + tuple(0 if size == 1 else stride for size, stride in zip(view.shape, view.strides, strict=True))
    return replace(view, shape=shape, strides=strides)


def outer_dims(views: Sequence[View]) -> tuple[Dim, tuple[int, ...], list[tuple[int, ...]]]:
    """Views of one shape as [outer, *dims], with as few dims as can be: outer, dims, and each view's strides, the outer one's first."""
    shape = views[0].shape
    kept = [i for i, dim in enumerate(shape) if dim != 1]
    # Neighbouring dims of fixed size that every view walks alike are one.
    groups: list[list[int]] = []
    for i in kept:
        last = groups[-1][-1] if groups else -1
        size = shape[i]
        if (
            last >= 0
            and isinstance(size, int)
            and isinstance(shape[last], int)
            and all(view.strides[last] == view.strides[i] * size for view in views)
        ):
            groups[-1].append(i)
        else:
            groups.append([i])
    sizes: list[Dim] = []
    for group in groups:
        size = shape[group[0]]
        for i in group[1:]:
            part = shape[i]
            assert isinstance(size, int)
            assert isinstance(part, int)
            size *= part
        sizes.append(size)
    inner = tuple(dim for dim in sizes[1:] if isinstance(dim, int))
    if len(inner) != max(len(sizes) - 1, 0):
        raise Refused("a dim of fixed size stands before the tokens")
    strides = [tuple(view.strides[group[-1]] for group in groups) or (0,) for view in views]
    return sizes[0] if sizes else 1, inner, strides


def rows_of(view: View) -> tuple[Dim, int, int] | None:
    """(rows, elements from one row to the next, columns) where the last dim is contiguous and the others walk by one stride, else None."""
    columns = view.shape[-1]
    if not isinstance(columns, int) or (columns != 1 and view.strides[-1] != 1):
        return None
    dims = _dims(replace(view, shape=view.shape[:-1], strides=view.strides[:-1]))
    if not dims:
        return 1, columns, columns
    if len(dims) == 1:
        return dims[0][0], dims[0][1], columns
    rows: Dim = dims[0][0]
    step = dims[-1][1]
    for (_, outer), (size, inner) in pairwise(dims):
        if not isinstance(size, int) or outer != size * inner:
            return None
        rows = Sym(rows.sym, rows.mul * size, rows.add * size) if isinstance(rows, Sym) else rows * size
    return rows, step, columns


def heads_of(view: View) -> tuple[Dim, int, int, int, int] | None:
    """(tokens, token stride, heads, head stride, size) of a view [1, T, H, D] whose last dim is contiguous, else None."""
    if len(view.shape) != 4 or view.shape[0] != 1:
        return None
    heads, size = view.shape[2:]
    if not isinstance(heads, int) or not isinstance(size, int) or (size != 1 and view.strides[3] != 1):
        return None
    return view.shape[1], view.strides[1], heads, view.strides[2], size
