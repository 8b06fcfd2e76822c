"""Every way of taking a part of a tensor becomes `aten.slice` with static, clipped bounds."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from mixplan.passes.canonicalize.elementwise import op_name
from mixplan.passes.canonicalize.reshapes import reshape_to
from mixplan.passes.patterns import argument, aten, axis_of, dims, dtype_of, is_call, is_tensor, slice_bounds
from mixplan.passes.rewriting import Rewriter
from mixplan.passes.rules import SimpleRule, rule_pass

__all__ = ["SLICES", "SLICE_RULES", "slice_of"]

_END = 9223372036854775807
_SPLITS = ("split", "split_with_sizes", "chunk", "tensor_split", "unsafe_split", "unsafe_chunk")


def slice_of(edit: Rewriter, x: fx.Node, axis: int, start: int, stop: int, step: int = 1) -> fx.Node:
    """x[start:stop:step] along `axis`; x itself where that is all of it."""
    if (start, stop, step) == (0, dims(x)[axis], 1):
        return x
    return edit.call(aten.slice.Tensor, x, axis, start, stop, step) if step != 1 else edit.call(aten.slice.Tensor, x, axis, start, stop)


def _part_of_split(node: fx.Node, edit: Rewriter) -> fx.Node | None:
    """getitem of split, chunk and the like, or of unbind."""
    pieces, index = node.args
    if not isinstance(pieces, fx.Node) or pieces.op != "call_function":
        return None
    name, values = op_name(pieces.target), pieces.meta.get("val")
    if name == "unbind":
        axis = axis_of(argument(pieces, 1, "dim", 0), pieces.args[0])
        return reshape_to(edit, slice_of(edit, pieces.args[0], axis, index, index + 1), dims(node))
    if name not in _SPLITS or not isinstance(values, (list, tuple)):
        return None
    axis = axis_of(argument(pieces, 2, "dim", 0), pieces.args[0])
    sizes = [dims(value)[axis] for value in values]
    if not all(isinstance(size, int) for size in sizes[: index + 1]):
        return None
    start = sum(int(size) for size in sizes[:index])
    return slice_of(edit, pieces.args[0], axis, start, start + int(sizes[index]))


def _select(node: fx.Node, edit: Rewriter) -> fx.Node | None:
    """x[i] along an axis, for a static i."""
    source, index = node.args[0], node.args[2]
    axis = axis_of(node.args[1], source)
    size = dims(source)[axis]
    if not isinstance(index, int) or (index < 0 and not isinstance(size, int)):
        return None
    index = index + int(size) if index < 0 else index
    return reshape_to(edit, slice_of(edit, source, axis, index, index + 1), dims(node))


def _narrow(node: fx.Node, edit: Rewriter) -> fx.Node | None:
    source, axis, start, length = node.args[:4]
    if not isinstance(start, int) or not isinstance(length, int) or start < 0:
        return None
    return edit.call(aten.slice.Tensor, source, axis_of(axis, source), start, start + length)


def _tidy(node: fx.Node, edit: Rewriter) -> fx.Node | None:
    """Clip bounds, drop slices of everything, join slices of slices, take slices of cat from the piece."""
    source = node.args[0]
    axis = axis_of(argument(node, 1, "dim", 0), source)
    if argument(node, 2, "start") in (0, None) and argument(node, 3, "end") in (_END, None) and argument(node, 4, "step", 1) == 1:
        return source
    bounds = slice_bounds(node)
    if bounds is None:
        return None
    _, _, start, stop, step = bounds
    if (start, stop, step) == (0, dims(source)[axis], 1):
        return source
    if is_call(source, aten.slice.Tensor) and step == 1:
        inner = slice_bounds(source)
        if inner is not None and inner[1] == axis and inner[4] == 1:
            return slice_of(edit, inner[0], axis, inner[2] + start, inner[2] + stop)
    if is_call(source, aten.cat.default) and step == 1 and axis_of(argument(source, 1, "dim", 0), source) == axis:
        at = 0
        for piece in source.args[0]:
            size = dims(piece)[axis]
            if not isinstance(size, int):
                break
            if at <= start and stop <= at + size:
                return slice_of(edit, piece, axis, start - at, stop - at)
            at += size
    wanted = (source, axis, start, stop) if step == 1 else (source, axis, start, stop, step)
    return None if node.args == wanted and not node.kwargs else edit.call(aten.slice.Tensor, *wanted)


def _slice_scatter(node: fx.Node, edit: Rewriter) -> fx.Node | None:
    """Writing a slice is a cat of what stands before, the new part, and what stands after."""
    base, part = node.args[0], node.args[1]
    axis = axis_of(argument(node, 2, "dim", 0), base)
    size: Any = dims(base)[axis]
    start = argument(node, 3, "start")
    width: Any = dims(part)[axis]
    start = 0 if start is None else start
    if argument(node, 5, "step", 1) != 1 or not all(isinstance(number, int) for number in (size, start, width)):
        return None
    start = start + size if start < 0 else start
    return _splice(edit, base, part, axis, start, start + width)


def _select_scatter(node: fx.Node, edit: Rewriter) -> fx.Node | None:
    base, part, axis, index = node.args
    axis = axis_of(axis, base)
    size = dims(base)[axis]
    if not isinstance(size, int) or not isinstance(index, int):
        return None
    index %= size
    shape = list(dims(base))
    shape[axis] = 1
    row = reshape_to(edit, part, tuple(shape))
    return None if row is None else _splice(edit, base, row, axis, index, index + 1)


def _splice(edit: Rewriter, base: fx.Node, part: fx.Node, axis: int, start: int, stop: int) -> fx.Node:
    size = int(dims(base)[axis])
    pieces = [slice_of(edit, base, axis, 0, start)] if start > 0 else []
    pieces.append(part)
    pieces += [slice_of(edit, base, axis, stop, size)] if stop < size else []
    return pieces[0] if len(pieces) == 1 else edit.call(aten.cat.default, pieces, axis)


def _cat(node: fx.Node, edit: Rewriter) -> fx.Node | None:
    """cat of one tensor, or with empty pieces."""
    pieces = list(node.args[0])
    if not all(is_tensor(piece) for piece in pieces):
        return None
    axis = axis_of(argument(node, 1, "dim", 0), node)
    full = [piece for piece in pieces if len(dims(piece)) == len(dims(node)) and dims(piece)[axis] != 0]
    if len(full) == 1:
        return full[0]
    if len(full) == len(pieces) and node.args[1:] == (axis,):
        return None
    return edit.call(aten.cat.default, full, axis) if full else None


def _index(node: fx.Node, edit: Rewriter) -> fx.Node | None:
    """x[:, rows] for a step input of indices is index_select (other indices may be negative, which that does not take)."""
    source, indices = node.args[0], list(node.args[1])
    given = [axis for axis, index in enumerate(indices) if index is not None]
    if len(given) != 1 or not is_tensor(indices[given[0]]):
        return None
    index = indices[given[0]]
    if index.op != "placeholder" or len(dims(index)) != 1 or dtype_of(index) not in (torch.int64, torch.int32):
        return None
    return edit.call(aten.index_select.default, source, given[0], index)


SLICE_RULES = (
    SimpleRule("index_to_index_select", (aten.index.Tensor,), _index),
    SimpleRule("part_of_split", (operator.getitem,), _part_of_split),
    SimpleRule("select", (aten.select.int,), _select),
    SimpleRule("narrow", (aten.narrow.default,), _narrow),
    SimpleRule("slice", (aten.slice.Tensor,), _tidy),
    SimpleRule("slice_scatter", (aten.slice_scatter.default,), _slice_scatter),
    SimpleRule("select_scatter", (aten.select_scatter.default,), _select_scatter),
    SimpleRule("cat", (aten.cat.default, aten.concat.default), _cat),
)
SLICES = rule_pass("slices", "canonicalize", "split, chunk, unbind, select, narrow and written slices to slice and cat", SLICE_RULES)
