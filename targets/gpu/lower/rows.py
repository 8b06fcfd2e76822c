"""Ops that work on rows: norms, quantization, rotary embedding, embedding, and rows by index."""

from __future__ import annotations

from mixplan.runtime.devices.gpu_program import Affine, Constant
from mixplan.runtime.dtypes import DType
from mixplan.runtime.formats import ceil_div, round_up
from mixplan.runtime.plan import Dim, Node
from mixplan.targets.gpu.lower.builder import Builder, affine, power_of_two
from mixplan.targets.gpu.lower.chain import BLOCK
from mixplan.targets.gpu.lower.gemm import format_arguments, weight_format
from mixplan.targets.gpu.lower.sizes import count_of, last_axis, row_block, row_warps, times
from mixplan.targets.gpu.lower.views import Refused, View, heads_of, rows_of

__all__ = ["ROWS"]


def _summed(b: Builder, node: Node) -> tuple[View, View | None, View | None]:
    """A norm's input, what is added to it first, and where the sum is kept."""
    value = node.inputs[0]
    add = b.sums.get(value)
    if add is None or value in b.views:
        return b.view(value), None, None
    # What is added lies row behind row, as the sum.
    x, residual = b.view(add.inputs[0]), b.view(add.inputs[1])
    if not residual.contiguous:
        x, residual = residual, b.contiguous(x)
    return x, residual, None if b.only_user(value) else b.define(value)


def _norm(b: Builder, node: Node) -> None:
    """rms_norm, layer_norm, and both with a quantization; with the addition before them."""
    x, residual, total = _summed(b, node)
    centred, quantized = node.op.startswith("layer"), node.op.endswith("_quant")
    found = rows_of(x)
    if found is not None:
        rows, step, columns = found
        heads, head = 1, 0
    else:
        place = heads_of(x)
        if place is None:
            x = b.contiguous(x)
            rows, step, columns = _plain(x)
            heads, head = 1, 0
        else:
            tokens, step, heads, head, columns = place
            rows = times(tokens, heads)
    group = int(str(node.attrs.get("group", 0)))
    padded = round_up(columns, group or 32) if quantized else columns
    outputs: list[View | None] = [b.define(value) for value in node.outputs]
    outputs += [None] * (3 - len(outputs))
    block = row_block(padded)
    options: dict[str, Constant] = {"K": columns, "KP": padded, "HEADS": heads, "X_STRIDE": step, "HEAD_STRIDE": head}
    options |= {"CENTRED": centred, "EPS": float(str(node.attrs["eps"])), "QUANTIZED": quantized, "GROUP": group, "BLOCK": block}
    weight, bias = b.optional(node, 1), b.optional(node, 2) if centred else None
    b.launch("norm", [x, residual, weight, bias, total, *outputs], options, [affine(rows)], warps=row_warps(block))


def _plain(view: View) -> tuple[Dim, int, int]:
    found = rows_of(view)
    if found is None:
        raise Refused("rows whose length varies with the step")
    return found


def _quantize(b: Builder, node: Node) -> None:
    x = b.view(node.inputs[0])
    if rows_of(x) is None:
        x = b.contiguous(x)
    rows, step, columns = _plain(x)
    group = int(str(node.attrs.get("group", 0)))
    padded = round_up(columns, group or 32)
    block = row_block(padded)
    outputs = [b.define(value) for value in node.outputs]
    options: dict[str, Constant] = {"K": columns, "KP": padded, "X_STRIDE": step, "GROUP": group, "BLOCK": block}
    b.launch("quantize_act", [x, *outputs], options, [affine(rows)], warps=row_warps(block))


def _rope(b: Builder, node: Node) -> None:
    x = b.view(node.inputs[0])
    place = heads_of(x)
    if place is None:
        x = b.contiguous(x)
        place = heads_of(x)
    if place is None:
        raise Refused("heads that are not [1, T, H, D]")
    tokens, step, heads, head, size = place
    cos, sin = (b.contiguous(b.view(value)) for value in node.inputs[1:])
    turned = cos.shape[-1]
    assert isinstance(turned, int)
    y = b.define(node.outputs[0])
    options: dict[str, Constant] = {"H": heads, "D": size, "DR": turned, "X_STRIDE": step, "HEAD_STRIDE": head}
    options |= {"INTERLEAVED": node.attrs["style"] == "interleaved", "BLOCK": power_of_two(size)}
    b.launch("rope", [x, cos, sin, y], options, [affine(tokens), Affine(add=heads)], warps=1)


def _embedding(b: Builder, node: Node) -> None:
    fmt = weight_format(b, node, 1)
    ids = b.contiguous(b.view(node.inputs[0]))
    if ids.dtype is not DType.i64:
        ids = b.copy(ids, DType.i64)
    rows, columns = int(str(node.attrs["rows"])), int(str(node.attrs["columns"]))
    count = count_of(ids.shape)
    book, options = format_arguments(fmt)
    y = b.define(node.outputs[0])
    block = min(power_of_two(columns), 1024)
    sizes: dict[str, Constant] = {"N": rows, "K": columns, "KP": fmt.padded_columns(columns), "BLOCK": block}
    given = [ids, *(b.optional(node, 1 + i) for i in range(3)), book, y]
    b.launch("embedding", given, {**sizes, **options}, [affine(count), Affine(add=ceil_div(columns, block))], words=[1])


def _take(b: Builder, node: Node) -> None:
    x, index = b.view(node.inputs[0]), b.contiguous(b.view(node.inputs[1]))
    axis = int(str(node.attrs["axis"]))
    tail = x.shape[axis + 1 :]
    inner = count_of(tail)
    if not isinstance(inner, int):
        raise Refused("rows whose length varies with the step")
    outer, count, size = count_of(x.shape[:axis]), count_of(index.shape), x.shape[axis]
    straight = View(x.home, x.dtype, tail, x.strides[axis + 1 :], x.offset)
    if not straight.contiguous or outer != 1:
        x = b.contiguous(x)
    if outer != 1 and not isinstance(size, int):
        raise Refused("rows taken along the tokens, behind another dim")
    total = times(outer, count) if isinstance(count, int) else times(count, outer) if isinstance(outer, int) else None
    if total is None:
        raise Refused("two dims vary with the step")
    y = b.define(node.outputs[0])
    numbers = [affine(outer), affine(count), affine(size)]
    options: dict[str, Constant] = {"INNER": inner, "X_STRIDE": x.strides[axis], "BLOCK": BLOCK}
    options["OUTER_STRIDE"] = inner * size if isinstance(size, int) else 0
    b.launch("take", [x, index, y], options, [affine(total, BLOCK, inner)], numbers=numbers)


def _gather(b: Builder, node: Node) -> None:
    x, index = (b.contiguous(b.view(value)) for value in node.inputs)
    size, count = last_axis(node, x), index.shape[-1]
    if not isinstance(count, int) or x.shape[:-1] != index.shape[:-1]:
        raise Refused("gather from rows that are not the index's")
    outer = count_of(x.shape[:-1])
    options: dict[str, Constant] = {"SIZE": size, "COUNT": count, "BLOCK": BLOCK}
    b.launch("gather", [x, index, b.define(node.outputs[0])], options, [affine(outer, BLOCK, count)], numbers=[affine(outer)])


ROWS = {
    "rms_norm": _norm,
    "layer_norm": _norm,
    "rms_norm_quant": _norm,
    "layer_norm_quant": _norm,
    "quantize_act": _quantize,
    "rope": _rope,
    "embedding": _embedding,
    "take": _take,
    "gather": _gather,
}
