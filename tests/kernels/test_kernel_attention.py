"""Attention over the paged cache: ragged steps of several sequences, every mask, against the numpy reference with a plain cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mixplan.runtime.ops import StepContext

# heads, KV heads, key size, value size, storage
SHAPES = [
    (9, 3, 64, 64, "F32"),
    (9, 3, 64, 64, "F16"),
    (4, 4, 20, 20, "F32"),
    (8, 1, 40, 24, "F16"),
    (5, 1, 72, 100, "F32"),
    (71, 1, 16, 16, "F32"),
]
KERNELS = [f"{k}<{hq},{hkv},{dk},{dv},Kv::{s}>" for hq, hkv, dk, dv, s in SHAPES for k in ("attention_append", "attention")]
EXTRA = "\n".join(
    f'extern "C" int64_t page_{i}() {{ return kv_bytes_per_page<{hkv},{dk},{dv},Kv::{s}>(); }}\n'
    f'extern "C" int64_t scratch_{i}(int64_t nt, int64_t t) {{ return attention_scratch<{hq},{hkv},{dk},{dv}>((int)nt, t); }}'
    for i, (hq, hkv, dk, dv, s) in enumerate(SHAPES)
)
VARIANTS: dict[str, dict[str, Any]] = {
    "causal": {},
    "window": {"window": 5},
    "wide-window": {"window": 70},
    "chunked": {"window": 40, "mask": "chunked"},
    "softcap": {"softcap": 2.0},
    "sinks": {"sinks": True},
    "alibi": {"slopes": True},
    "all": {"window": 50, "softcap": 3.0, "sinks": True, "slopes": True},
}
# Steps of (sequence, first position, tokens): a prompt, decoding beside another prompt, a batch, one token, going back, a long prompt.
STEPS = [
    [(0, 0, 7)],
    [(0, 7, 1), (2, 0, 65)],
    [(0, 8, 1), (2, 65, 1), (1, 0, 3)],
    [(2, 66, 1)],
    [(2, 40, 30), (1, 3, 2)],
    [(3, 0, 150), (2, 70, 1)],
    [(3, 150, 1)],
    [(3, 151, 100)],
    [(3, 251, 1), (2, 71, 1)],
]
MAX_PAGES, PAGES = 9, 24


class Plain:
    """A cache of one layer without pages, for the reference."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[int, tuple[np.ndarray, np.ndarray]]] = {}

    def append(self, layer: int, k: np.ndarray, v: np.ndarray, step: StepContext) -> None:
        for i, (sequence, position) in enumerate(zip(step.sequences.tolist(), step.positions.tolist(), strict=True)):
            self.rows.setdefault(sequence, {})[position] = (k[i].copy(), v[i].copy())

    def read(self, layer: int, sequence: int, length: int) -> tuple[np.ndarray, np.ndarray]:
        rows = [self.rows[sequence][p] for p in range(length)]
        return np.stack([r[0] for r in rows]), np.stack([r[1] for r in rows])


# Masks do not depend on sizes: the first two shapes see all variants, the others the plainest and the fullest.
CASES = [(index, variant) for index in range(len(SHAPES)) for variant in VARIANTS if index < 2 or variant in ("causal", "all")]


@pytest.mark.parametrize(("index", "variant"), CASES, ids=lambda x: "-".join(map(str, SHAPES[x])) if isinstance(x, int) else x)
def test_ragged_steps(native: Any, reference: Any, make_scratch: Any, scratch_intact: Any, index: int, variant: str) -> None:
    hq, hkv, dk, dv, storage = SHAPES[index]
    rng = np.random.default_rng(index)
    options = dict(VARIANTS[variant])
    sinks = rng.standard_normal(hq).astype(np.float32) if options.pop("sinks", False) else None
    slopes = rng.random(hq).astype(np.float32) * 0.2 if options.pop("slopes", False) else None
    attrs = {"layer": 0, "scale": float(dk**-0.5), **options}
    cache = np.zeros(PAGES * native.number(f"page_{index}"), np.uint8)
    tables = np.full((4, MAX_PAGES), -1, np.int32)
    free = rng.permutation(PAGES).tolist()
    plain = Plain()
    for step in STEPS:
        slots = np.concatenate([np.full(n, s, np.int32) for s, _, n in step])
        positions = np.concatenate([np.arange(p, p + n, dtype=np.int32) for _, p, n in step])
        for sequence, first, n in step:
            for page in range((first + n - 1) // 32 + 1):
                if tables[sequence, page] < 0:
                    tables[sequence, page] = free.pop()
        t = len(slots)
        width = hq * dk + hkv * (dk + dv) + 5
        merged = (rng.standard_normal((t, width)) * 1.5).astype(np.float32)
        cuts = np.cumsum([hq * dk, hkv * dk, hkv * dv])
        q, k, v, _ = np.split(merged, cuts, axis=1)
        k, v = k.reshape(1, t, hkv, dk), v.reshape(1, t, hkv, dv)
        if storage == "F16":
            k, v = (a.astype(np.float16).astype(np.float32) for a in (k, v))
        context = StepContext(slots, positions, plain)
        (want,) = reference("attention", attrs, [q.reshape(1, t, hq, dk), k, v, sinks, slopes], context)
        y = np.full((t, hq * dv + 3), 9, np.float32)
        threads = 1 + t % 3
        block = make_scratch(native.number(f"scratch_{index}", threads, t))
        args = {
            "q": merged,
            "k": merged[:, cuts[0] :].ctypes.data,
            "v": merged[:, cuts[1] :].ctypes.data,
            "ldq": width,
            "ldk": width,
            "ldv": width,
            "ldq_head": dk,
            "ldk_head": dk,
            "ldv_head": dv,
            "sinks": sinks,
            "slopes": slopes,
            "y": y,
            "ldy": hq * dv + 3,
            "ldy_head": dv,
            "positions": positions,
            "slots": slots,
            "block_tables": tables,
            "max_pages": MAX_PAGES,
            "cache": cache,
            "pages": PAGES,
            "t": t,
            "scale": attrs["scale"],
            "softcap": attrs.get("softcap", 0.0),
            "window": attrs.get("window", 0),
            "mask": int(attrs.get("mask") == "chunked"),
            "scratch": block,
        }
        consts = f"<{hq},{hkv},{dk},{dv},Kv::{storage}>"
        native.call("attention_append" + consts, threads=threads, **args)
        native.call("attention" + consts, threads=threads, **args)
        scratch_intact(block)
        np.testing.assert_allclose(y[:, : hq * dv].reshape(want.shape[1:]), want[0], rtol=2e-5, atol=1e-5)
        assert (y[:, hq * dv :] == 9).all()


def test_pages_out_of_range_are_left_alone(native: Any, make_scratch: Any) -> None:
    """A block table that points outside the cache writes nothing and gives zeros."""
    hq, _, d, _, _ = SHAPES[0]
    size = native.number("page_0")
    store = np.full(3 * size, 0x11, np.uint8)
    x = np.ones((2, hq * d), np.float32)
    y = np.full((2, hq * d), 9, np.float32)
    tables = np.array([[-1], [1]], np.int32)
    args = {
        "q": x,
        "k": x,
        "v": x,
        "ldq": hq * d,
        "ldk": hq * d,
        "ldv": hq * d,
        "ldq_head": d,
        "ldk_head": d,
        "ldv_head": d,
        "y": y,
        "ldy": hq * d,
        "ldy_head": d,
        "positions": np.array([0, 0], np.int32),
        "slots": np.array([0, 1], np.int32),
        "block_tables": tables,
        "max_pages": 1,
        "cache": store[size:],
        "pages": 1,
        "t": 2,
        "scale": 1.0,
        "scratch": make_scratch(native.number("scratch_0", 1, 2)),
    }
    args["positions"], args["slots"] = np.array([0, 40], np.int32), np.array([0, 1], np.int32)
    for kernel in KERNELS[:2]:
        native.call(kernel, **args)
    assert (store == 0x11).all()
    assert (y == 0).all()
