"""Ops along axes: reductions, softmax, running sums, the largest elements. The axes must be of fixed size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mixplan.runtime.devices.gpu_program import Constant
from mixplan.runtime.dtypes import DType
from mixplan.runtime.plan import Node
from mixplan.targets.gpu.lower.builder import Builder, affine, power_of_two
from mixplan.targets.gpu.lower.sizes import count_of, last_axis, row_block, row_warps
from mixplan.targets.gpu.lower.views import Refused, View

__all__ = ["AXES"]

_NUMBERS = (DType.f32, DType.i64, DType.i32)
_INNER_BLOCK = 256
_ROW_BLOCK = 4096


def _in_rows(b: Builder, node: Node, view: View, axes: Sequence[int]) -> tuple[View, list[int], int]:
    """The view with these axes last, contiguous; the order of its dims, and the elements of a row."""
    order = [axis for axis in range(len(view.shape)) if axis not in axes] + list(axes)
    moved = replace(view, shape=tuple(view.shape[i] for i in order), strides=tuple(view.strides[i] for i in order))
    columns = count_of(moved.shape[len(order) - len(axes) :])
    if not isinstance(columns, int):
        raise Refused(f"{node.op} over an axis that varies with the step")
    return b.contiguous(moved), order, columns


def _along(b: Builder, node: Node) -> None:
    """softmax, log_softmax, cumsum: results of the same shape."""
    x = b.view(node.inputs[0])
    if x.dtype not in (_NUMBERS if node.op == "cumsum" else (DType.f32,)):
        raise Refused(f"{node.op} of {x.dtype.value}")
    rows, order, columns = _in_rows(b, node, x, [int(str(node.attrs["axis"]))])
    block = row_block(columns)
    options: dict[str, Constant] = {"K": columns, "BLOCK": block}
    if node.op != "cumsum":
        options["LOG"] = node.op == "log_softmax"
    straight = order == sorted(order)
    y = b.define(node.outputs[0]) if straight else b.temporary(x.dtype, rows.shape)
    grid = [affine(count_of(rows.shape[:-1]))]
    b.launch("cumsum" if node.op == "cumsum" else "softmax", [rows, y], options, grid, warps=row_warps(block))
    if not straight:
        back = [order.index(axis) for axis in range(len(order))]
        b.views[node.outputs[0]] = replace(y, shape=x.shape, strides=tuple(y.strides[i] for i in back))


def _topk(b: Builder, node: Node) -> None:
    x = b.contiguous(b.view(node.inputs[0]))
    columns, count = last_axis(node, x), int(str(node.attrs["k"]))
    if x.dtype is not DType.f32 or not node.attrs.get("largest", True) or not 0 < count <= 64:
        raise Refused("topk of other than the largest 1 to 64 of f32")
    block = row_block(columns)
    outputs = [b.define(value) for value in node.outputs]
    options: dict[str, Constant] = {"K": columns, "COUNT": count, "BLOCK": block}
    b.launch("topk", [x, *outputs], options, [affine(count_of(x.shape[:-1]))], warps=row_warps(block))


def _axes(node: Node) -> list[int]:
    axes = node.attrs["axes"] if "axes" in node.attrs else (node.attrs["axis"],)
    assert isinstance(axes, tuple)
    return sorted(int(str(axis)) for axis in axes)


def _reduce(b: Builder, node: Node) -> None:
    x, axes = b.view(node.inputs[0]), _axes(node)
    if x.dtype not in ((DType.bool,) if node.op in ("any", "all") else (DType.f32,) if node.op in ("mean", "logsumexp") else _NUMBERS):
        raise Refused(f"{node.op} of {x.dtype.value}")
    if node.op in ("sum", "mean", "amax", "amin") and x.dtype is DType.f32 and len(axes) == 1 and axes[0] < len(x.shape) - 1:
        _reduce_columns(b, node, axes[0])
        return
    rows, order, columns = _in_rows(b, node, x, axes)
    block = min(power_of_two(columns), _ROW_BLOCK)
    least, most = (-(2**31), 2**31 - 1) if x.dtype is DType.i32 else (-(2**63), 2**63 - 1)
    options: dict[str, Constant] = {"K": columns, "OP": node.op, "FLOATS": x.dtype is DType.f32, "BLOCK": block}
    options["END"] = least if node.op.endswith("max") else most
    grid = [affine(count_of(rows.shape[: len(order) - len(axes)]))]
    b.launch("reduce_rows", [rows, b.define(node.outputs[0])], options, grid, warps=row_warps(block))


def _reduce_columns(b: Builder, node: Node, axis: int) -> None:
    """Over an axis that others follow: neighbours in memory go to neighbouring threads."""
    x = b.contiguous(b.view(node.inputs[0]))
    size, inner = x.shape[axis], count_of(x.shape[axis + 1 :])
    if not isinstance(size, int) or not isinstance(inner, int):
        raise Refused(f"{node.op} over an axis that varies with the step")
    outer = count_of(x.shape[:axis])
    options: dict[str, Constant] = {"SIZE": size, "INNER": inner, "OP": node.op, "BLOCK": _INNER_BLOCK}
    grid = [affine(outer, _INNER_BLOCK, inner)]
    b.launch("reduce", [x, b.define(node.outputs[0])], options, grid, numbers=[affine(outer)])


AXES = {
    **dict.fromkeys(("softmax", "log_softmax", "cumsum"), _along),
    **dict.fromkeys(("sum", "mean", "prod", "amax", "amin", "any", "all", "argmax", "argmin", "logsumexp"), _reduce),
    "topk": _topk,
}
