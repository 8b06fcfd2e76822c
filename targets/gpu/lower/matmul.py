"""Products of two activations."""

from __future__ import annotations

from mixplan.runtime.devices.gpu_program import Affine, Constant
from mixplan.runtime.dtypes import DType
from mixplan.runtime.formats import ceil_div
from mixplan.runtime.plan import Dim, Node
from mixplan.targets.gpu.lower.builder import Builder, affine
from mixplan.targets.gpu.lower.views import Refused, View, broadcast, outer_dims

__all__ = ["matmul"]

_TILE = (32, 32, 32)


def _batch(a: View, b: View) -> tuple[Dim, int, int]:
    """The batch of both, and its stride in each; it must be one dim that both walk alike."""
    lead = [View(view.home, view.dtype, view.shape[:-2], view.strides[:-2], view.offset) for view in (a, b)]
    outer, inner, strides = outer_dims(lead)
    if inner:
        raise Refused("a product whose batch is of several dims that are walked differently")
    return outer, strides[0][0], strides[1][0]


def matmul(b: Builder, node: Node) -> None:
    """The op `matmul`, f32."""
    shape = b.values[node.outputs[0]].shape
    left, right = (b.view(value) for value in node.inputs)
    if left.dtype is not DType.f32 or min(len(left.shape), len(right.shape)) < 2:
        raise Refused("matmul of other than f32 matrices")
    columns, inner = shape[-1], left.shape[-1]
    if not isinstance(columns, int) or not isinstance(inner, int):
        raise Refused("matmul whose columns or sums vary with the step")
    left = broadcast(left, (*shape[:-2], *left.shape[-2:]))
    right = broadcast(right, (*shape[:-2], *right.shape[-2:]))
    count, left_stride, right_stride = _batch(left, right)
    y = b.define(node.outputs[0])
    sizes: dict[str, Constant] = {"N": columns, "K": inner, "A_BATCH": left_stride, "B_BATCH": right_stride}
    sizes |= {"A_ROW": left.strides[-2], "A_COLUMN": left.strides[-1], "B_ROW": right.strides[-2], "B_COLUMN": right.strides[-1]}
    sizes |= dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), _TILE, strict=True))
    grid = [affine(shape[-2], _TILE[0]), Affine(add=ceil_div(columns, _TILE[1])), affine(count)]
    b.launch("matmul", [left, right, y], sizes, grid, numbers=[affine(shape[-2])])
