"""Kernels as a decoder of some 8 billion weights needs them, by name: what is built to see whether all of them fit each architecture."""

from __future__ import annotations

from collections.abc import Mapping

from mixplan.targets.gpu.arch import Arch
from mixplan.targets.gpu.builds import BuildRequest, Constant
from mixplan.targets.gpu.selection_chains import chains
from mixplan.targets.gpu.tiles import SIZES, attention_tiles, gemm_tile

__all__ = ["selection"]

_WIDTH, _FFN, _HEADS, _KV_HEADS, _HEAD, _VOCAB, _EXPERTS = 4096, 14336, 32, 8, 128, 128256, 128
_SYMMETRIC: dict[str, Constant] = {"NONUNIFORM": False, "TWO_LEVEL": False, "MINIMUM": False}
# name -> bits, group, type of the scales, what of _SYMMETRIC is otherwise, type of the zeros
_FORMATS: dict[str, tuple[int, int, str, Mapping[str, Constant], str]] = {
    "W4A16": (4, 128, "*fp16", {}, ""),
    "W4A16:n": (4, 64, "*i8", {"NONUNIFORM": True, "TWO_LEVEL": True}, ""),
    "W5A16 minimum": (5, 32, "*fp16", {"MINIMUM": True}, "*fp16"),
    "W3A16 asymmetric": (3, 64, "*fp16", {}, "*u8"),
    "W8A16": (8, 0, "*fp32", {}, ""),
    "W8A16:e4m3": (8, 0, "*fp32", {"NONUNIFORM": True}, ""),
    "BF16": (16, 0, "", {}, ""),
    "FP32": (32, 0, "", {}, ""),
}
_POOLS = {"f16": "*fp16", "bf16": "*i16", "i8": "*u8", "i4": "*u8", "fp8": "*u8", "f32": "*fp32"}


def selection(arch: Arch) -> dict[str, BuildRequest]:
    """The kernels, with this architecture's tiles."""
    out: dict[str, BuildRequest] = {}
    for size, _, _ in SIZES:
        out |= _floats(arch, size)
        out |= _integers(arch, size)
    out |= _attention(arch)
    out |= _rows()
    out |= chains()
    return out


def _floats(arch: Arch, size: str) -> dict[str, BuildRequest]:
    out = {}
    for name, (bits, group, scales, options, zeros) in _FORMATS.items():
        plain = zeros == "" and not options and bits not in (3, 5)
        tile = gemm_tile(arch, size, "f32" if bits == 32 else "a16" if plain else "a16x", _WIDTH, _WIDTH, group)
        constants: dict[str, Constant] = {"N": _WIDTH, "K": _WIDTH, "KP": _WIDTH, "BLOCKS": _WIDTH // 16, "X_STRIDE": _WIDTH}
        constants |= {"RESIDUAL_STRIDE": _WIDTH, "BITS": bits, "GROUP": group, "GATE": "", "QUANT": 0}
        constants |= _SYMMETRIC
        constants |= dict(options)
        constants |= {"DOT": "f32" if bits == 32 else "bf16", "SPLIT": 1, "BLOCK_M": tile.m, "BLOCK_N": tile.n, "BLOCK_K": tile.k}
        book = "*i8" if constants["NONUNIFORM"] and bits < 8 else ""
        types: tuple[str, ...] = ("*fp32", "*i32", scales, zeros, book, "*fp32", "*fp32", "*fp32", "", "", "i32")
        out[f"{name} {size}"] = BuildRequest("gemm_a16", types, constants, tile.warps, tile.stages)
        if name in ("W4A16", "W8A16"):
            gated = constants | {"GATE": "silu", "BLOCKS": 2 * _WIDTH // 16, "RESIDUAL_STRIDE": 0}
            types = ("*fp32", "*i32", scales, zeros, book, "", "", "*fp32", "", "", "i32")
            out[f"{name} gated {size}"] = BuildRequest("gemm_a16", types, gated, tile.warps, tile.stages)
            quantized = (*types[:7], "*i8", "*fp32", "*fp32", "i32")
            out[f"{name} gated quantized {size}"] = BuildRequest("gemm_a16", quantized, gated | {"QUANT": 32}, tile.warps, tile.stages)
    return out


def _integers(arch: Arch, size: str) -> dict[str, BuildRequest]:
    out = {}
    for name, bits, group, scales in (("W8A8", 8, 0, "*fp32"), ("W4A8", 4, 128, "*fp16"), ("W4A8:g32", 4, 32, "*fp16")):
        tile = gemm_tile(arch, size, "a8", _WIDTH, _FFN, group)
        constants: dict[str, Constant] = {"N": _WIDTH, "KP": _FFN, "BLOCKS": _WIDTH // 16, "RESIDUAL_STRIDE": _WIDTH, "BITS": bits}
        constants |= {"GROUP": group, "GATE": "", "QUANT": 0, "SPLIT": 1, "BLOCK_M": tile.m, "BLOCK_N": tile.n, "BLOCK_K": tile.k}
        types: tuple[str, ...] = ("*i8", "*fp32", "*fp32", "*i32", scales, "", "", "*fp32", "*fp32", "*fp32", "", "", "i32")
        out[f"{name} {size}"] = BuildRequest("gemm_a8", types, constants | _SYMMETRIC, tile.warps, tile.stages)
    tile = gemm_tile(arch, size, "fp8", _WIDTH, _FFN, 0)
    constants = {"N": _WIDTH, "KP": _FFN, "BLOCKS": _WIDTH // 16, "RESIDUAL_STRIDE": _WIDTH, "GATE": "", "QUANT": 0, "NATIVE": arch.fp8}
    constants |= {"GROUP": 0, "SPLIT": 1, "BLOCK_M": tile.m, "BLOCK_N": tile.n, "BLOCK_K": tile.k}
    types = ("*u8", "*fp32", "*i32", "*fp32", "", "*fp32", "*fp32", "", "", "i32")
    out[f"FP8 {size}"] = BuildRequest("gemm_fp8", types, constants, tile.warps, tile.stages)
    return out


def _attention(arch: Arch) -> dict[str, BuildRequest]:
    out = {}
    for title, (held, head) in {**{held: (held, _HEAD) for held in _POOLS}, "f16, heads of 256": ("f16", 256)}.items():
        pool = _POOLS[held]
        decode, prefill = attention_tiles(arch, head, held)
        common: dict[str, Constant] = {
            "HQ": _HEADS,
            "HKV": _KV_HEADS,
            "DK": head,
            "DV": head,
            "Q_STRIDE": 3 * _HEADS * head,
            "HEAD_STRIDE": head,
        }
        common |= {"Y_STRIDE": _HEADS * head}
        common |= {"SCALE": head**-0.5, "CAP": 0.0, "WINDOW": 0, "CHUNKED": False, "ROUNDED": False, "PAGE": 32, "BLOCK_K": head}
        common |= {"FORMAT_K": held, "FORMAT_V": held, "DOT": held if held in ("f32", "bf16") else "f16", "BLOCK_V": head}
        parameters = "*fp16" if held in ("i8", "i4") else ""
        pools = (pool, parameters, pool, parameters)
        constants = common | {"SPLITS": decode.split, "BLOCK_G": 16, "BLOCK_N": decode.n}
        types: tuple[str, ...] = ("*fp32", *pools, "*i32", "*i32", "*i32", "", "", "*fp32", "*fp32", "i32")
        out[f"decode {title}"] = BuildRequest("attention_decode", types, constants, decode.warps, decode.stages)
        constants = common | {"BLOCK_M": prefill.m, "BLOCK_N": prefill.n}
        types = ("*fp32", *pools, "*i32", "*i32", "*i32", "*i32", "", "", "*fp32", "i32")
        out[f"prefill {title}"] = BuildRequest("attention_prefill", types, constants, prefill.warps, prefill.stages)
        every = constants | {"CAP": 30.0, "WINDOW": 1024, "ROUNDED": True}
        types = (*types[:9], "*fp32", "*fp32", "*fp32", "i32")
        out[f"prefill {title} softcap window sinks"] = BuildRequest("attention_prefill", types, every, prefill.warps, prefill.stages)
        append: dict[str, Constant] = {"HEADS": _KV_HEADS, "D": head, "X_STRIDE": 3 * _HEADS * head, "HEAD_STRIDE": head, "PAGE": 32}
        types = ("*fp32", pool, parameters, "*i32", "*i32", "*i32", "i32")
        out[f"append {title}"] = BuildRequest("kv_append", types, append | {"FORMAT": held, "BLOCK": head}, 1)
    merge: dict[str, Constant] = {"HQ": _HEADS, "DV": _HEAD, "Y_STRIDE": _HEADS * _HEAD, "SPLITS": 8, "BLOCK_V": _HEAD}
    out["merge"] = BuildRequest("attention_merge", ("*fp32", "*fp32", "*fp32", "*fp32"), merge)
    return out


def _rows() -> dict[str, BuildRequest]:
    f, i, q = "*fp32", "*i32", ("*i8", "*fp32", "*fp32")
    norm: dict[str, Constant] = {"K": _WIDTH, "KP": _WIDTH, "HEADS": 1, "X_STRIDE": _WIDTH, "HEAD_STRIDE": 0, "EPS": 1e-6, "BLOCK": _WIDTH}
    weight: dict[str, Constant] = {"BITS": 4, "GROUP": 128, **_SYMMETRIC}
    expert: dict[str, Constant] = {"J": 8, "SHARED": True, "E": _EXPERTS, "N": 1536, "K": 2048, "KP": 2048, "BLOCKS": 96, "X_STRIDE": 2048}
    split: dict[str, Constant] = {"N": _WIDTH, "BLOCKS": 256, "RESIDUAL_STRIDE": _WIDTH, "GATE": "", "QUANT": 0, "SPLIT": 8, "BLOCK_M": 4}
    rope: dict[str, Constant] = {"H": _HEADS, "D": _HEAD, "DR": _HEAD, "X_STRIDE": 6144, "HEAD_STRIDE": _HEAD, "INTERLEAVED": False}
    fp8: dict[str, Constant] = {"K": _FFN, "KP": _FFN, "X_STRIDE": _FFN, "BLOCK": 16384}
    batched: dict[str, Constant] = {"N": 128, "K": 512, "A_BATCH": 512, "A_ROW": 4096, "A_COLUMN": 1, "B_BATCH": 65536, "B_ROW": 128}
    batched |= {"B_COLUMN": 1, "BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 32}
    walk_rows: dict[str, Constant] = {"INNER": _WIDTH, "OUTER_STRIDE": 0, "X_STRIDE": _WIDTH, "BLOCK": 512}
    return {
        "split sum": BuildRequest("split_sum", (f, "", f, f, "", "", "i32"), split | {"BLOCK_N": 256}),
        "rms norm": BuildRequest("norm", (f, "", f, "", "", f, "", ""), norm | {"CENTRED": False, "QUANTIZED": False, "GROUP": 0}, 8),
        "layer norm quantized": BuildRequest("norm", (f, f, f, f, f, *q), norm | {"CENTRED": True, "QUANTIZED": True, "GROUP": 128}, 8),
        "quantize": BuildRequest("quantize_act", (f, *q), fp8 | {"GROUP": 0}, 8),
        "quantize fp8": BuildRequest("quantize_fp8", (f, "*u8", f), fp8, 8),
        "rope": BuildRequest("rope", (f, f, f, f), rope | {"BLOCK": _HEAD}, 1),
        "embedding": BuildRequest(
            "embedding", ("*i64", i, "*fp16", "", "", f), {"N": _VOCAB, "K": _WIDTH, "KP": _WIDTH, "BLOCK": 1024} | weight
        ),
        "route": BuildRequest("route", ("*i64", i, i, "i32", "i32"), {"E": _EXPERTS, "BLOCK_M": 16, "BLOCK_E": 256, "BLOCK": 512}),
        "experts": BuildRequest(
            "grouped_gemm",
            (f, i, i, i, "*fp16", "", "", "", f),
            expert | weight | {"DOT": "bf16", "BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 64},
        ),
        "sample": BuildRequest("sample", (f, "*fp64", i, "*i64", i), {"V": _VOCAB, "LIMIT": 1024, "BLOCK": 2048}, 8),
        "matmul": BuildRequest("matmul", (f, f, f, "i32"), batched),
        "softmax": BuildRequest("softmax", (f, f), {"K": _EXPERTS, "LOG": False, "BLOCK": 128}, 1),
        "row mean": BuildRequest("reduce_rows", (f, f), {"K": _WIDTH, "OP": "mean", "FLOATS": True, "END": 0, "BLOCK": _WIDTH}, 8),
        "row argmax": BuildRequest("reduce_rows", (f, "*i64"), {"K": 32000, "OP": "argmax", "FLOATS": True, "END": 0, "BLOCK": 4096}, 8),
        "row argmin i64": BuildRequest(
            "reduce_rows", ("*i64", "*i64"), {"K": 100, "OP": "argmin", "FLOATS": False, "END": 2**63 - 1, "BLOCK": 128}, 1
        ),
        "row product": BuildRequest("reduce_rows", (f, f), {"K": 100, "OP": "prod", "FLOATS": True, "END": 0, "BLOCK": 128}, 1),
        "running sum": BuildRequest("cumsum", (f, f), {"K": _WIDTH, "BLOCK": _WIDTH}, 8),
        "topk": BuildRequest("topk", (f, f, "*i64"), {"K": _EXPERTS, "COUNT": 8, "BLOCK": 128}, 1),
        "take": BuildRequest("take", (f, "*i64", f, "i32", "i32", "i32"), walk_rows),
        "gather": BuildRequest("gather", (f, "*i64", f, "i32"), {"SIZE": _EXPERTS, "COUNT": 8, "BLOCK": 512}),
        "sum": BuildRequest("reduce", (f, f, "i32"), {"SIZE": 8, "INNER": 2048, "OP": "sum", "BLOCK": 256}),
    }
