"""Products with packed weights."""

from __future__ import annotations

from mixplan.runtime.devices.gpu_program import Affine, Constant
from mixplan.runtime.dtypes import DType
from mixplan.runtime.formats import LANES, WeightFormat, ceil_div
from mixplan.runtime.ops.base import TypedShape
from mixplan.runtime.ops.checks import check_packed
from mixplan.runtime.plan import Dim, Node
from mixplan.targets.gpu.lower.builder import Builder, Special, affine, power_of_two
from mixplan.targets.gpu.lower.floats import rounded_rows
from mixplan.targets.gpu.lower.views import Refused, View, rows_of
from mixplan.targets.gpu.tiles import SIZES, Tile, gemm_tile, product_kind

__all__ = ["PRODUCTS", "format_arguments", "weight_format"]

_SUM_COLUMNS = 256
_SUM_ROWS = 4


def weight_format(b: Builder, node: Node, weight: int, copies: int = 1) -> WeightFormat:
    """The format of the packed weight at input `weight` and after it."""

    def typed(position: int) -> TypedShape | None:
        view = b.optional(node, position)
        return None if view is None else (view.dtype, view.shape)

    return check_packed(node.op, dict(node.attrs), typed(weight), typed(weight + 1), typed(weight + 2), copies)


def format_arguments(fmt: WeightFormat) -> tuple[Special | None, dict[str, Constant]]:
    """The codebook, and the format as compile-time arguments."""
    options: dict[str, Constant] = {
        "BITS": fmt.bits,
        "NONUNIFORM": fmt.nonuniform,
        "GROUP": fmt.group_size,
        "TWO_LEVEL": fmt.two_level,
        "MINIMUM": fmt.has_minimum,
    }
    return Special("codebook", "*i8", index=fmt.bits) if fmt.nonuniform and not fmt.floating else None, options


def _number(node: Node, name: str) -> int:
    value = node.attrs[name]
    assert isinstance(value, int)
    return value


def _quantizing_user(b: Builder, node: Node, tiles: list[Tile]) -> tuple[Node, int] | None:
    """The node that quantizes this one's result and nothing else does, and its group, where every tile holds whole groups."""
    user = b.only_user(node.outputs[0])
    if user is None or user.op != "quantize_act":
        return None
    group = user.attrs.get("group", 0)
    width = _SUM_COLUMNS // 2
    if not isinstance(group, int) or group == 0 or any(tile.n // 2 % group for tile in tiles) or width % group:
        return None
    return user, group


def _product(b: Builder, node: Node) -> None:
    """linear, gated_linear and their forms on int8 activations; activations in 8-bit floats are made first."""
    integers = node.op.endswith("_q")
    floats = not integers and node.attrs.get("activation_dtype") == "e4m3"
    gated = node.op.startswith("gated")
    first = 3 if integers else 1
    fmt = weight_format(b, node, first, copies=2 if gated else 1)
    if floats and not fmt.floating:
        raise Refused(f"inputs in e4m3 with weights in {fmt.name}")
    rows, columns = _number(node, "rows"), _number(node, "columns")
    blocks = ceil_div(rows, LANES) * (2 if gated else 1)
    padded = fmt.padded_columns(columns)
    found = rows_of(b.view(node.inputs[0]))
    x = b.view(node.inputs[0])
    if found is None or (integers and found[1] != padded):
        x = b.contiguous(x)
        found = rows_of(x)
        assert found is not None
    count, stride, _ = found
    rounded = rounded_rows(b, node.inputs[0], x, found, padded) if floats else ()
    book, options = format_arguments(fmt)
    weight, scales, zeros = (b.optional(node, first + i) for i in range(3))
    bias, residual = b.optional(node, first + 3), None if gated else b.optional(node, first + 4)
    residual_stride = 0
    if residual is not None:
        place = rows_of(residual)
        if place is None:
            residual = b.contiguous(residual)
            place = rows_of(residual)
        assert place is not None
        residual_stride = place[1]
    exact = fmt.bits == 32
    kind = "a8" if integers else "fp8" if floats else product_kind(fmt)
    most = b.most(count)
    sizes = [(least, up) for _, least, up in SIZES if least <= most]
    tiles = [gemm_tile(b.arch, name, kind, blocks * LANES, padded, fmt.group_size, fmt.bits) for name, least, _ in SIZES if least <= most]
    quantized = _quantizing_user(b, node, tiles) if gated else None
    outputs: list[View | None] = [b.define(value) for value in (quantized[0].outputs if quantized else node.outputs)]
    outputs += [None] * (3 - len(outputs))
    if quantized:
        b.fused.add(quantized[0].name)
    common: dict[str, Constant] = {
        "N": rows,
        "BLOCKS": blocks,
        "RESIDUAL_STRIDE": residual_stride,
        "GATE": str(node.attrs["activation"]) if gated else "",
        "QUANT": quantized[1] if quantized else 0,
    }
    if integers:
        given = [b.contiguous(b.view(value)) for value in node.inputs[:3]]
        own: dict[str, Constant] = {"KP": padded, **options}
    elif floats:
        given = list(rounded)
        own = {"KP": padded, "GROUP": fmt.group_size, "NATIVE": b.arch.fp8}
    else:
        given = [x]
        own = {"K": columns, "KP": padded, "X_STRIDE": stride, "DOT": "f32" if exact else "bf16", **options}
    packed = [weight, scales] if floats else [weight, scales, zeros, book]
    number = affine(count)
    for (least, up), tile in zip(sizes, tiles, strict=True):
        limits = {"rows": number, "least": least, "most": up}
        grid = [affine(count, tile.m), Affine(add=ceil_div(blocks * LANES, tile.n)), Affine(add=tile.split)]
        split = tile.split > 1
        partial = b.scratch(4 * tile.split * min(up, most) * blocks * LANES) if split else None
        ends: list[View | None] = [None, None] if split else [bias, residual]
        targets = [partial, None, None] if split else outputs
        b.launch(
            "gemm_a8" if integers else "gemm_fp8" if floats else "gemm_a16",
            [*given, *packed, *ends, *targets],
            {**common, **own, "SPLIT": tile.split, "BLOCK_M": tile.m, "BLOCK_N": tile.n, "BLOCK_K": tile.k},
            grid,
            numbers=[number],
            words=[len(given)],
            warps=tile.warps,
            stages=tile.stages,
            **limits,  # type: ignore[arg-type]
        )
        if split:
            grid = [affine(count, _SUM_ROWS), Affine(add=ceil_div(blocks * LANES, _SUM_COLUMNS))]
            shape: dict[str, Constant] = {"SPLIT": tile.split, "BLOCK_M": _SUM_ROWS, "BLOCK_N": _SUM_COLUMNS}
            b.launch("split_sum", [partial, bias, residual, *outputs], {**common, **shape}, grid, numbers=[number], **limits)  # type: ignore[arg-type]


_ROUTE_M = 16
_PAIRS = 512  # that `route` looks at together


def _experts(b: Builder, node: Node) -> None:
    """grouped_linear: pairs sorted by expert, then one product for each tile of rows."""
    experts, rows, columns = (_number(node, name) for name in ("experts", "rows", "columns"))
    fmt = weight_format(b, node, 2, copies=experts)
    x, ids = b.view(node.inputs[0]), b.contiguous(b.view(node.inputs[1]))
    place = rows_of(x)
    if place is None:
        x = b.contiguous(x)
        place = rows_of(x)
    assert place is not None
    chosen = ids.shape[1]
    assert isinstance(chosen, int)
    tokens: Dim = ids.shape[0]
    if ids.dtype is not DType.i64:
        ids = b.copy(ids, DType.i64)
    tile = gemm_tile(b.arch, "decode", product_kind(fmt), 1 << 30, fmt.padded_columns(columns), fmt.group_size, fmt.bits)
    book, options = format_arguments(fmt)
    most_pairs = b.most(tokens) * chosen
    most_tiles = min(most_pairs, ceil_div(most_pairs, _ROUTE_M) + experts + 1)
    pairs = affine(tokens, mul=chosen)
    by_rows = Affine(pairs.tokens, pairs.rows, 0, pairs.add + _ROUTE_M * (experts + 1), _ROUTE_M)
    order, owners = b.scratch(4 * most_tiles * _ROUTE_M), b.scratch(4 * most_tiles)
    integers = [View(home, DType.i32, (1,), (0,)) for home in (order, owners)]
    # The table of tiles is as long as the largest step needs; launches stop at the step's own.
    shape: dict[str, Constant] = {"E": experts, "BLOCK_M": _ROUTE_M, "BLOCK_E": power_of_two(experts + 1), "BLOCK": _PAIRS}
    b.launch("route", [ids, *integers], shape, [Affine(add=experts + 1)], numbers=[pairs, Affine(add=most_tiles)])
    y = b.define(node.outputs[0])
    b.launch(
        "grouped_gemm",
        [x, *integers, *(b.optional(node, 2 + i) for i in range(3)), book, b.optional(node, 5), y],
        {
            "J": chosen,
            "SHARED": x.shape[1] == 1 and chosen != 1,
            "E": experts,
            "N": rows,
            "K": columns,
            "KP": fmt.padded_columns(columns),
            "BLOCKS": ceil_div(rows, LANES),
            "X_STRIDE": place[1],
            "DOT": "f32" if fmt.bits == 32 else "bf16",
            "BLOCK_M": _ROUTE_M,
            "BLOCK_N": tile.n,
            "BLOCK_K": tile.k,
            **options,
        },
        [(pairs, by_rows), Affine(add=ceil_div(rows, tile.n))],
        words=[3],
        warps=tile.warps,
        stages=tile.stages,
    )


PRODUCTS = {
    "linear": _product,
    "linear_q": _product,
    "gated_linear": _product,
    "gated_linear_q": _product,
    "grouped_linear": _experts,
}
