"""Taking over a file's own codes: which rows of a constant expression are which lines of the file, and these lines as a plan holds them.

What a graph does to weights mostly moves rows: merging, slicing, stacking, exchanging axes. The same operators applied to the numbers of
lines in place of the lines tell where each row comes from. An expression that computes with its weights has no such answer.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mixplan.compiler.constants import Call, Expr, Parameter
from mixplan.compiler.quantize import not_finite
from mixplan.compiler.weights.base import BlockSource
from mixplan.compiler.weights.gguf_blocks import BLOCK, in_format
from mixplan.runtime.formats import WeightFormat
from mixplan.runtime.packing import Quantized

__all__ = ["StoredRows"]

_RESHAPES = frozenset({"view", "reshape", "flatten", "unflatten", "_unsafe_view", "unsqueeze", "squeeze"})
_SAME = frozenset({"alias", "clone", "contiguous", "detach", "lift_fresh_copy"})
_ALONG = frozenset({"slice", "select", "flip"})
_TURNS = frozenset({"transpose", "permute", "t", "numpy_T"})
_STACKS = frozenset({"cat", "concat", "stack"})
# A line's number has this many bits; above them is the parameter's.
_LINE_BITS = 40
_KEPT = 8

Known = tuple[Tensor, int]
"""Numbers of lines, size 1 along an axis, and that axis."""


class StoredRows:
    """The rows of constants as the file has them. `exact`, `rounded`, `apart`: parameters that were taken over without loss; with their
    codes, but scales or minima rounded; not at all."""

    def __init__(self, source: BlockSource) -> None:
        self._source = source
        self._names: list[str] = []
        self._known: OrderedDict[str, NDArray[np.int64] | None] = OrderedDict()
        self._lock = threading.Lock()
        self.exact: dict[str, None] = {}
        self.rounded: dict[str, None] = {}
        self.apart: dict[str, None] = {}

    def types(self, name: str) -> tuple[str, ...]:
        """The types that the file stores a parameter in."""
        return self._source.types(name)

    def read(self, expr: Expr, fmt: WeightFormat, start: int, stop: int, name: str) -> Quantized | None:
        """Rows [start, stop) of a matrix, or of a stack of them counted one after another, in `fmt`; None where they cannot be had.

        `fmt` has groups of 32, no code book, and at least the bits of the file's codes. CheckpointError naming `name` for NaN and infinity.
        """
        ids = self._rows(expr)
        if ids is None or fmt.group_size != BLOCK:
            return None
        wanted = ids[start:stop]
        count, columns = len(wanted), expr.shape[-1]
        codes = np.empty((count, columns), np.uint8)
        scales = np.empty((count, columns // BLOCK), fmt.scale_dtype.numpy)
        zeros = np.empty(scales.shape, fmt.zero_dtype.numpy) if fmt.has_minimum else None
        for number in np.unique(wanted >> _LINE_BITS):
            parameter = self._names[number]
            of_it = np.flatnonzero(wanted >> _LINE_BITS == number)
            for which, blocks in self._source.blocks(parameter, wanted[of_it] & ((1 << _LINE_BITS) - 1)):
                if blocks is None or blocks.kind.bits > fmt.bits or (blocks.kind.minimum and not fmt.has_minimum):
                    self._note(self.apart, parameter)
                    return None
                held, exact = in_format(blocks, fmt)
                if not np.isfinite(held.scales).all() or (held.zeros is not None and not np.isfinite(held.zeros).all()):
                    raise not_finite(name)
                at = of_it[which]
                codes[at], scales[at] = held.codes, held.scales
                if zeros is not None:
                    zeros[at] = held.zeros
                self._note(self.exact if exact else self.rounded, parameter)
        return Quantized(codes, scales, zeros)

    def _note(self, record: dict[str, None], parameter: str) -> None:
        with self._lock:
            record[parameter] = None

    def _rows(self, expr: Expr) -> NDArray[np.int64] | None:
        """For each row the number of its line; None where rows are not whole lines."""
        with self._lock:
            if expr.key not in self._known:
                found = self._lines(expr)
                whole = found is not None and found[1] == len(expr.shape) - 1
                self._known[expr.key] = found[0].reshape(-1).numpy() if found is not None and whole else None
                while len(self._known) > _KEPT:
                    self._known.popitem(last=False)
            self._known.move_to_end(expr.key)
            return self._known[expr.key]

    def _lines(self, expr: Expr) -> Known | None:
        if isinstance(expr, Parameter):
            places = self._source.places(expr.name)
            if places is None:
                return None
            if expr.name not in self._names:
                self._names.append(expr.name)
            return torch.from_numpy(np.ascontiguousarray(places.ids)) + (self._names.index(expr.name) << _LINE_BITS), places.axis
        if not isinstance(expr, Call) or not expr.args:
            return None
        if expr.op in _STACKS:
            return self._stacked(expr)
        first = self._lines(expr.args[0]) if isinstance(expr.args[0], Expr) else None
        if first is None:
            return None
        ids, axis = first
        if expr.op in _SAME:
            return ids, axis
        if expr.op in _RESHAPES:
            last = axis == ids.dim() - 1 and expr.shape[-1] == expr.args[0].shape[-1]
            return (ids.reshape(*expr.shape[:-1], 1), len(expr.shape) - 1) if last else None
        if expr.op in _TURNS:
            turned = expr.target(ids, *expr.args[1:], **expr.kwargs)
            return turned, _where(expr, ids.dim(), axis)
        if expr.op in _ALONG:
            return _moved(expr, ids, axis)
        return None

    def _stacked(self, expr: Call) -> Known | None:
        found = [self._lines(piece) for piece in expr.args[0]]
        known = [one for one in found if one is not None]
        along = int(expr.args[1] if len(expr.args) > 1 else expr.kwargs.get("dim", 0)) % len(expr.shape)
        if len(known) != len(found) or len({axis for _, axis in known}) != 1:
            return None
        axis = known[0][1]
        if expr.op == "stack":
            return torch.stack([ids for ids, _ in known], along), axis + (along <= axis)
        return (torch.cat([ids for ids, _ in known], along), axis) if along != axis else None


def _where(expr: Call, rank: int, axis: int) -> int:
    """Where an exchange of axes takes one."""
    marker = torch.empty([2 if i == axis else 1 for i in range(rank)], device="meta")
    turned: Any = expr.target(marker, *expr.args[1:], **expr.kwargs)
    return list(turned.shape).index(2)


def _moved(expr: Call, ids: Tensor, axis: int) -> Known | None:
    """A slice, a choice or a flip along other axes."""
    rank = ids.dim()
    along = expr.args[1] if len(expr.args) > 1 else 0
    touched = {int(a) % rank for a in (along if isinstance(along, (list, tuple)) else [along])}
    if axis in touched:
        return None
    moved: Tensor = expr.target(ids, *expr.args[1:], **expr.kwargs)
    return moved, axis - (expr.op == "select" and min(touched) < axis)
