"""Attention: keys and values are stored, then single tokens and stretches of tokens have launches of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mixplan.runtime.devices.gpu_program import Affine, Constant
from mixplan.runtime.hal import PAGE_SIZE
from mixplan.runtime.kv_format import KvFormat
from mixplan.runtime.plan import AttentionLayer, Node
from mixplan.targets.gpu.arch import Arch
from mixplan.targets.gpu.lower.builder import DECODE_TOKENS, Builder, Special, affine, power_of_two
from mixplan.targets.gpu.lower.views import Refused, View, heads_of
from mixplan.targets.gpu.tiles import attention_tiles

__all__ = ["attention", "stretch_of"]

_POOLS = {"f32": "*fp32", "f16": "*fp16", "bf16": "*i16", "i8": "*u8", "i4": "*u8", "fp8": "*u8"}
"""The pointer to a pool of keys or values, by the kernels' name for its format."""
_KINDS = {KvFormat.k8v4: ("i8", "i4")}
"""Formats whose keys and values differ; of the others both go by the format's own name."""


def stretch_of(arch: Arch, layers: Sequence[AttentionLayer]) -> int:
    """Tokens of a stretch: the smallest tile of any layer, since all layers of a step share the stretches."""
    held = [(max(layer.k_dim, layer.v_dim), one.value) for layer in layers for one, _ in layer.runs]
    return min((attention_tiles(arch, dim, name)[1].m for dim, name in held), default=64)


def _heads(view: View, b: Builder) -> tuple[View, int, int, int, int]:
    found = heads_of(view)
    if found is None:
        view = b.contiguous(view)
        found = heads_of(view)
    if found is None:
        raise Refused("heads that are not [1, T, H, D]")
    _, step, heads, head_step, size = found
    return view, step, heads, head_step, size


def _from(view: View | None, elements: int) -> View | None:
    """The view from `elements` on."""
    return None if view is None else replace(view, offset=view.offset + elements)


def attention(b: Builder, node: Node) -> None:
    """The op `attention`: launches for each run of KV heads of one format."""
    q, q_step, query_heads, q_head, dk = _heads(b.view(node.inputs[0]), b)
    parts = [_heads(b.view(value), b) for value in node.inputs[1:3]]
    kv_heads, dv = parts[0][2], parts[1][4]
    per = query_heads // kv_heads
    attrs = node.attrs
    number = int(str(attrs["layer"]))
    y = b.define(node.outputs[0])
    common: dict[str, Constant] = {"DK": dk, "DV": dv, "Q_STRIDE": q_step, "HEAD_STRIDE": q_head, "Y_STRIDE": query_heads * dv}
    common |= {"SCALE": _float(attrs["scale"]), "CAP": _float(attrs.get("softcap", 0.0)), "WINDOW": int(str(attrs.get("window", 0)))}
    common |= {"CHUNKED": attrs.get("mask") == "chunked", "ROUNDED": attrs.get("scores") == "i8", "PAGE": PAGE_SIZE}
    common |= {"BLOCK_K": max(power_of_two(dk), 16), "BLOCK_V": max(power_of_two(dv), 16)}
    first = 0
    for run, (held, heads) in enumerate(b.attention[number].runs if b.attention else ((KvFormat.f16, kv_heads),)):
        pools: list[Special | None] = []
        kinds = _KINDS.get(held, (held.value, held.value))
        for part, kind, (x, step, _, head, size) in zip(("keys", "values"), kinds, parts, strict=True):
            pools += _store(b, _from(x, first * head), (step, head, size, heads), (kind, part, run, number))
        options: dict[str, Constant] = {"HQ": heads * per, "HKV": heads, "FORMAT_K": kinds[0], "FORMAT_V": kinds[1]}
        options["DOT"] = held.value if held in (KvFormat.f32, KvFormat.bf16) else "f16"
        ends = [_from(b.optional(node, 3 + i), first * per) for i in range(2)]
        _attend(b, _from(q, first * per * q_head), pools, ends, _from(y, first * per * dv), common | options, held)
        first += heads


def _store(b: Builder, x: View | None, sizes: tuple[int, int, int, int], pool: tuple[str, str, int, int]) -> list[Special | None]:
    """Launch the storing of keys or values, and give their pool and its parameters."""
    assert x is not None
    (step, head, size, heads), (kind, part, run, number) = sizes, pool
    own = [
        Special("kv", _POOLS[kind], f"{part}.{run}", number),
        Special("kv", "*fp16", f"{part}_parameters.{run}", number) if kind in ("i8", "i4") else None,
    ]
    options: dict[str, Constant] = {"HEADS": heads, "D": size, "X_STRIDE": step, "HEAD_STRIDE": head, "PAGE": PAGE_SIZE}
    options |= {"FORMAT": kind, "BLOCK": max(power_of_two(size), 32)}
    grid = [affine(x.shape[1]), Affine(add=heads)]
    b.launch("kv_append", [x, *own, *_step("tables", "positions", "slots")], options, grid, numbers=[_MAX_PAGES], warps=1)
    return own


_MAX_PAGES = Special("max_pages", "i32")


def _step(*names: str) -> list[Special]:
    return [Special("step", "*i32", name) for name in names]


def _attend(
    b: Builder,
    q: View | None,
    pools: Sequence[Special | None],
    ends: Sequence[View | None],
    y: View | None,
    options: dict[str, Constant],
    held: KvFormat,
) -> None:
    """Launch the attention of the query heads that read one run of KV heads. ends: sinks and slopes."""
    assert y is not None
    heads, kv_heads, dk, dv = (int(str(options[name])) for name in ("HQ", "HKV", "DK", "DV"))
    decode, prefill = attention_tiles(b.arch, max(dk, dv), held.value)
    tokens, splits = affine(y.shape[1]), decode.split
    most = min(DECODE_TOKENS, b.most(y.shape[1]))
    sums, parts = b.scratch(4 * most * heads * splits * dv), b.scratch(4 * most * heads * splits * 2)
    b.launch(
        "attention_decode",
        [q, *pools, *_step("tables", "positions", "slots"), *ends, sums, parts],
        {**options, "SPLITS": splits, "BLOCK_G": max(power_of_two(heads // kv_heads), 16), "BLOCK_N": decode.n},
        [tokens, Affine(add=kv_heads), Affine(add=splits)],
        numbers=[_MAX_PAGES],
        warps=decode.warps,
        stages=decode.stages,
        mode="decode",
    )
    merged: dict[str, Constant] = {"HQ": heads, "DV": dv, "Y_STRIDE": options["Y_STRIDE"], "SPLITS": splits, "BLOCK_V": options["BLOCK_V"]}
    b.launch("attention_merge", [sums, parts, ends[0], y], merged, [tokens, Affine(add=heads)], mode="decode")
    b.launch(
        "attention_prefill",
        [q, *pools, *_step("tables", "positions", "slots", "stretches"), *ends, y],
        {**options, "BLOCK_M": b.stretch, "BLOCK_N": prefill.n},
        [Affine(stretches=1), Affine(add=heads)],
        numbers=[_MAX_PAGES],
        warps=prefill.warps,
        stages=prefill.stages,
        mode="prefill",
    )


def _float(value: object) -> float:
    """An attr that is a number."""
    return float(str(value))
