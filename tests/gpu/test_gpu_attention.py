"""The attention kernels over a paged cache, against the op's reference over the reference device's cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from mixplan.runtime.devices.reference_kv import ReferenceCache
from mixplan.runtime.hal import CacheSpec
from mixplan.runtime.kv_format import CODES, KvFormat, quantize
from mixplan.runtime.ops import OPS, StepContext
from mixplan.runtime.plan import AttentionLayer

HQ, HKV, DK, DV, PAGE, PAGES = 6, 2, 24, 43, 32, 12
SCALE = DK**-0.5
# Three sequences of 40, 5 and 9 tokens, in pages that stand anywhere.
LENGTHS = {0: 40, 2: 5, 1: 9}
TABLES = np.full((3, 4), -1, np.int32)
TABLES[0, :2], TABLES[1, :1], TABLES[2, :1] = [7, 1], [3], [5]
POOLS = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16, "fp8": np.uint8, "i8": np.uint8, "i4": np.uint8}


@dataclass(frozen=True)
class Case:
    held: str = "f32"
    window: int = 0
    chunked: bool = False
    softcap: float = 0.0
    sinks: bool = False
    slopes: bool = False
    rounded: bool = False
    splits: int = 1
    tolerance: float = 2e-5


# What limits the accuracy: nothing, or f16 or bf16 products of factors of size 1 (the cache's own rounding is in the reference too).
CASES = {
    "plain": Case(),
    "f16, window, splits": Case("f16", window=20, splits=2, tolerance=3e-3),
    "bf16, sinks": Case("bf16", sinks=True, tolerance=2e-2),
    "i8, softcap, splits": Case("i8", softcap=3.0, splits=4, tolerance=3e-3),
    "fp8": Case("fp8", tolerance=3e-3),
    "i4": Case("i4", tolerance=3e-3),
    "chunks, ALiBi": Case(window=16, chunked=True, slopes=True),
    "sinks, rounded queries, splits": Case(sinks=True, rounded=True, splits=4),
}


def _rows(rng: np.random.Generator, count: int, heads: int, dim: int) -> np.ndarray:
    return rng.standard_normal((count, heads, dim)).astype(np.float32)


def _storage(held: str, dim: int) -> tuple[np.ndarray, np.ndarray | None]:
    codes = CODES.get({"i8": 8, "i4": 4}.get(held, 0))
    pool = np.zeros((PAGES, HKV, PAGE, -(-dim * codes.bits // 8) if codes else dim), POOLS[held])
    return pool, np.zeros((PAGES, HKV, PAGE, codes.groups(dim), 2), np.float16) if codes else None


@pytest.mark.parametrize("name", CASES)
def test_attention(name: str, kernel: Any) -> None:
    """Each sequence is stored, then its last tokens ask: one token each (decode), and stretches (prefill)."""
    case, rng = CASES[name], np.random.default_rng(1)
    layer = AttentionLayer(HKV, DK, DV, KvFormat(case.held), case.window)
    cache = ReferenceCache({0: layer}, CacheSpec(PAGES, PAGE, 3, 4))
    cache.begin(TABLES)
    order = list(LENGTHS.items())
    slots = np.concatenate([np.full(n, slot, np.int32) for slot, n in order])
    positions = np.concatenate([np.arange(n, dtype=np.int32) for _, n in order])
    k, v = _rows(rng, len(slots), HKV, DK), _rows(rng, len(slots), HKV, DV)
    q = _rows(rng, len(slots), HQ, DK) * 2
    sinks = rng.standard_normal(HQ).astype(np.float32) if case.sinks else None
    slopes = (rng.random(HQ) / 4).astype(np.float32) if case.slopes else None
    attrs = {"layer": 0, "scale": SCALE, "window": case.window, "softcap": case.softcap, "mask": "chunked" if case.chunked else "causal"}
    attrs["scores"] = "i8" if case.rounded else "f32"
    context = StepContext(slots, positions, cache)
    wanted = OPS["attention"].reference(context, attrs, [q[None], k[None], v[None], sinks, slopes])[0][0]

    pools: list[np.ndarray | None] = []
    for x, dim in ((k, DK), (v, DV)):
        pool, parameters = _storage(case.held, dim)
        # Heads stand apart from one another, as in a merged projection.
        wide = np.concatenate([x, np.full_like(x, np.nan)], axis=1)
        made = kernel(
            "kv_append", (len(slots), HKV), wide, pool, parameters, TABLES, positions, slots, 4,
            HEADS=HKV, D=dim, X_STRIDE=2 * HKV * dim, HEAD_STRIDE=dim, PAGE=PAGE, FORMAT=case.held, BLOCK=64,
        )  # fmt: skip
        pools += made[1:3] if parameters is not None else [made[1], None]

    dot = {"f32": "f32", "bf16": "bf16i"}.get(case.held, "f16")
    sizes: dict[str, Any] = {
        "HQ": HQ,
        "HKV": HKV,
        "DK": DK,
        "DV": DV,
        "Q_STRIDE": HQ * DK,
        "Y_STRIDE": HQ * DV,
        "HEAD_STRIDE": DK,
        "SCALE": SCALE,
    }
    sizes |= {
        "CAP": case.softcap,
        "WINDOW": case.window,
        "CHUNKED": case.chunked,
        "ROUNDED": case.rounded,
        "FORMAT_K": case.held,
        "FORMAT_V": case.held,
    }
    sizes |= {"DOT": dot, "PAGE": PAGE, "BLOCK_K": 32, "BLOCK_V": 64, "BLOCK_N": 32}
    ends = np.cumsum([n for _, n in order])
    decode = ends - 1
    y = np.full((3, HQ, *((case.splits,) if case.splits > 1 else ()), DV), np.nan, np.float32)
    parts = np.zeros((3, HQ, case.splits, 2), np.float32)
    made = kernel(
        "attention_decode", (3, HKV, case.splits), q[decode], *pools, TABLES, positions[decode], slots[decode], sinks, slopes, y, parts, 4,
        SPLITS=case.splits, BLOCK_G=16, **sizes,
    )  # fmt: skip
    got = made[-2]
    if case.splits > 1:
        y = np.full((3, HQ, DV), np.nan, np.float32)
        got = kernel("attention_merge", (3, HQ), got, made[-1], sinks, y, HQ=HQ, DV=DV, Y_STRIDE=HQ * DV, SPLITS=case.splits, BLOCK_V=64)[
            -1
        ]
    np.testing.assert_allclose(got, wanted[decode], atol=case.tolerance, rtol=0)

    asked = np.concatenate([np.arange(end - n, end) for end, n in zip(ends, (18, 5, 9), strict=True)])
    stretches = np.array([[0, 16], [16, 2], [18, 5], [23, 9]], np.int32)
    y = np.full((len(asked), HQ, DV), np.nan, np.float32)
    got = kernel(
        "attention_prefill", (4, HQ), q[asked], *pools, TABLES, positions[asked], slots[asked], stretches, sinks, slopes, y, 4,
        BLOCK_M=16, **sizes,
    )[-1]  # fmt: skip
    np.testing.assert_allclose(got, wanted[asked], atol=case.tolerance, rtol=0)


def test_i8_codes_are_those_of_the_definition(kernel: Any) -> None:
    """Bit for bit, a constant head and one with a large offset among them: the cache of a plan means the same on every device."""
    rng = np.random.default_rng(2)
    x = _rows(rng, 4, HKV, DK)
    x[1, 0], x[2, 1] = 3.25, x[2, 1] + 100
    pool, parameters = _storage("i8", DK)
    made = kernel(
        "kv_append", (4, HKV), x, pool, parameters, TABLES, np.arange(4, dtype=np.int32), np.full(4, 2, np.int32), 4,
        HEADS=HKV, D=DK, X_STRIDE=HKV * DK, HEAD_STRIDE=DK, PAGE=PAGE, FORMAT="i8", BLOCK=32,
    )  # fmt: skip
    codes, scales, minima = quantize(x, CODES[8])
    np.testing.assert_array_equal(made[1][5, :, :4].transpose(1, 0, 2), codes)
    np.testing.assert_array_equal(made[2][5, :, :4, 0].transpose(1, 0, 2), np.concatenate([scales, minima], axis=-1))
