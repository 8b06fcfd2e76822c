"""Attention over the paged cache: ragged steps of several sequences, every mask, against the numpy reference with a plain cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mixplan.runtime.float8 import decode, encode
from mixplan.runtime.kv_format import CODES, dequantize, quantize
from mixplan.runtime.ops import StepContext

# heads, KV heads, key size, value size, storage
SHAPES = [
    (9, 3, 64, 64, "F32"),
    (9, 3, 64, 64, "F16"),
    (4, 4, 20, 20, "F32"),
    (8, 1, 40, 24, "F16"),
    (5, 1, 72, 100, "F32"),
    (71, 1, 16, 16, "F32"),
    (8, 2, 128, 128, "F16"),
    (2, 2, 80, 64, "F16"),
    (9, 3, 64, 64, "I8"),
    (9, 3, 64, 64, "I4"),
    (4, 4, 20, 20, "I8"),
    (8, 1, 42, 24, "I4"),
    (6, 2, 72, 100, "K8V4"),
    (71, 1, 16, 16, "I4"),
    (8, 2, 128, 128, "I8"),
    (5, 1, 288, 48, "I8"),
    (9, 3, 64, 64, "FP8"),
    (8, 1, 42, 24, "FP8"),
]
# Shapes whose queries and keys are rotated on their way in: index, rotated dims, style.
ROTATED = [(0, 64, "Half"), (1, 64, "Half"), (3, 32, "Interleaved"), (4, 36, "Half"), (8, 64, "Half")]
PAIR = ("attention_append", "attention")
KERNELS = [f"{k}<{hq},{hkv},{dk},{dv},Kv::{s}>" for hq, hkv, dk, dv, s in SHAPES for k in PAIR]
KERNELS += [f"{k}<{','.join(map(str, SHAPES[i][:4]))},Kv::{SHAPES[i][4]},{dr},Rope::{style}>" for i, dr, style in ROTATED for k in PAIR]
EXTRA = "\n".join(
    f'extern "C" int64_t page_{i}() {{ return kv_bytes_per_page<{hkv},{dk},{dv},Kv::{s}>(); }}\n'
    f'extern "C" int64_t scratch_{i}(int64_t nt, int64_t t) {{ return attention_scratch<{hq},{hkv},{dk},{dv},Kv::{s}>((int)nt, t); }}'
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


# Masks do not depend on sizes: some shapes see all variants, the others the plainest and the fullest.
CASES = [(index, variant) for index in range(len(SHAPES)) for variant in VARIANTS if index in (0, 1, 8) or variant in ("causal", "all")]


def _kept(x: np.ndarray, storage: str, bits: dict[str, int]) -> np.ndarray:
    """What is read back of keys or values [1, T, heads, dim]."""
    if storage == "F16":
        return x.astype(np.float16).astype(np.float32)
    if storage == "FP8":
        return decode(encode(x))
    return dequantize(*quantize(x, CODES[bits[storage]]), CODES[bits[storage]]) if storage in bits else x


def _stored(k: np.ndarray, v: np.ndarray, storage: str) -> tuple[np.ndarray, np.ndarray]:
    return _kept(k, storage, {"I8": 8, "I4": 4, "K8V4": 8}), _kept(v, storage, {"I8": 8, "I4": 4, "K8V4": 4})


class Run:
    """Steps through STEPS with the kernels of a shape, and gives each step's inputs and outputs."""

    def __init__(self, native: Any, make_scratch: Any, index: int, consts: str = "") -> None:
        self.native, self.make_scratch, self.index = native, make_scratch, index
        self.hq, self.hkv, self.dk, self.dv, self.storage = SHAPES[index]
        self.rng = np.random.default_rng(index)
        self.cache = np.zeros(PAGES * native.number(f"page_{index}"), np.uint8)
        self.tables = np.full((4, MAX_PAGES), -1, np.int32)
        self.free = self.rng.permutation(PAGES).tolist()
        self.consts = f"<{self.hq},{self.hkv},{self.dk},{self.dv},Kv::{self.storage}{consts}>"

    def prepare(self, step: list[tuple[int, int, int]]) -> tuple[np.ndarray, ...]:
        """Pages for the step; slots, positions, lengths, and q, k and v as columns of one array."""
        for sequence, first, n in step:
            for page in range((first + n - 1) // 32 + 1):
                if self.tables[sequence, page] < 0:
                    self.tables[sequence, page] = self.free.pop()
        slots = np.concatenate([np.full(n, s, np.int32) for s, _, n in step])
        positions = np.concatenate([np.arange(p, p + n, dtype=np.int32) for _, p, n in step])
        lengths = np.concatenate([np.full(n, p + n, np.int32) for _, p, n in step])
        width = self.hq * self.dk + self.hkv * (self.dk + self.dv) + 5
        return slots, positions, lengths, (self.rng.standard_normal((len(slots), width)) * 1.5).astype(np.float32)

    def split(self, merged: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """q, k and v, token-major."""
        t = len(merged)
        cuts = np.cumsum([self.hq * self.dk, self.hkv * self.dk, self.hkv * self.dv])
        q, k, v, _ = np.split(merged, cuts, axis=1)
        return q.reshape(1, t, self.hq, self.dk), k.reshape(1, t, self.hkv, self.dk), v.reshape(1, t, self.hkv, self.dv)

    def call(
        self, threads: int, slots: np.ndarray, positions: np.ndarray, lengths: np.ndarray, merged: np.ndarray, **fields: Any
    ) -> np.ndarray:
        """Both kernels; y [T, hq*dv + 3] filled with 9 before."""
        t, width = merged.shape
        y = np.full((t, self.hq * self.dv + 3), 9, np.float32)
        sync = np.zeros(threads * 16, np.int32)
        block = self.make_scratch(self.native.number(f"scratch_{self.index}", threads, t))
        args = {
            "q": merged,
            "k": merged[:, self.hq * self.dk :].ctypes.data,
            "v": merged[:, (self.hq + self.hkv) * self.dk :].ctypes.data,
            **dict.fromkeys(("ldq", "ldk", "ldv"), width),
            **dict.fromkeys(("ldq_head", "ldk_head"), self.dk),
            **dict.fromkeys(("ldv_head", "ldy_head"), self.dv),
            "y": y,
            "ldy": y.shape[1],
            "positions": positions,
            "slots": slots,
            "lengths": lengths,
            "block_tables": self.tables,
            "max_pages": MAX_PAGES,
            "cache": self.cache,
            "pages": PAGES,
            "t": t,
            "scratch": block,
            "sync": sync,
            **fields,
        }
        for kernel in PAIR:
            self.native.call(kernel + self.consts, threads=threads, **args)
        assert not sync.any()
        assert (y[:, self.hq * self.dv :] == 9).all()
        self.block = block
        return y[:, : self.hq * self.dv].reshape(t, self.hq, self.dv)


def _compare(native: Any, storage: str, decode: bool, got: np.ndarray, want: np.ndarray, rotated: bool = False) -> None:
    """f32 differs in the order of sums only; the rest is this.

    - Where keys are rotated on their way into an f16 cache, the last bit of the rotation can tip one to the next f16: 2^-11 of it, in a
      score times a query's 4 or so and a scale of 1/8, and in the result times a value's 4.
    - Single tokens meet codes as numbers of 16 bits: a query is off by 2^-16 of its largest element, say 5, in each of 64 products with
      keys of 1.5, and a weight by 2^-16 of the largest.
    - A code that the last bit of a rotation tips to the next is off by a step, 9/255 (a key's range; 9/15 of 4 bits), in a score times a
      query's 4 or so and a scale of 1/8.
    - Levels with products of bf16 pairs round queries, keys and values (not f32 ones) and weights to 8 bits in steps with prompts: 2^-9
      each. A score of 64 products of magnitude 1.5^2/8 errs by about 2^-9 * 2.25 * sqrt(2/3), a result that one key dominates by 2^-8
      of it besides.
    """
    if storage != "F32" and not decode and native.level in ("bf16", "amx"):
        assert np.abs(got - want).max() < 0.06
        assert np.sqrt(np.mean((got - want) ** 2)) < 4e-3
    else:
        codes = storage not in ("F32", "F16", "FP8")
        atol = (0.07 if rotated else 2e-3) if codes else 1e-3 if rotated and storage == "F16" else 1e-5
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=atol)
        if codes:
            assert np.sqrt(np.mean((got - want) ** 2)) < (2e-3 if rotated else 4e-4)


@pytest.mark.parametrize(("index", "variant"), CASES, ids=lambda x: "-".join(map(str, SHAPES[x])) if isinstance(x, int) else x)
def test_ragged_steps(native: Any, reference: Any, make_scratch: Any, scratch_intact: Any, index: int, variant: str) -> None:
    run = Run(native, make_scratch, index)
    options = dict(VARIANTS[variant])
    sinks = run.rng.standard_normal(run.hq).astype(np.float32) if options.pop("sinks", False) else None
    slopes = run.rng.random(run.hq).astype(np.float32) * 0.2 if options.pop("slopes", False) else None
    attrs = {"layer": 0, "scale": float(run.dk**-0.5), **options}
    plain = Plain()
    for number, step in enumerate(STEPS):
        slots, positions, lengths, merged = run.prepare(step)
        q, k, v = run.split(merged)
        k, v = _stored(k, v, run.storage)
        (want,) = reference("attention", attrs, [q, k, v, sinks, slopes], StepContext(slots, positions, plain))
        mask = {"window": attrs.get("window", 0), "mask": int(attrs.get("mask") == "chunked"), "softcap": attrs.get("softcap", 0.0)}
        got = run.call(1 + number % 3, slots, positions, lengths, merged, sinks=sinks, slopes=slopes, scale=attrs["scale"], **mask)
        scratch_intact(run.block)
        _compare(native, run.storage, bool((positions + 1 == lengths).all()), got, want[0])


@pytest.mark.parametrize(("index", "dims", "style"), ROTATED)
def test_rotation_on_the_way_in(native: Any, reference: Any, make_scratch: Any, index: int, dims: int, style: str) -> None:
    run = Run(native, make_scratch, index, f",{dims},Rope::{style}")
    attrs = {"layer": 0, "scale": float(run.dk**-0.5)}
    plain = Plain()
    for number, step in enumerate(STEPS):
        slots, positions, lengths, merged = run.prepare(step)
        q, k, v = run.split(merged)
        angles = run.rng.random((len(slots), dims)).astype(np.float32) * 6
        cos, sin = np.cos(angles), np.sin(angles)
        q, k = (reference("rope", {"style": style.lower()}, [x, cos[None], sin[None]])[0] for x in (q, k))
        k, v = _stored(k, v, run.storage)
        (want,) = reference("attention", attrs, [q, k, v, None, None], StepContext(slots, positions, plain))
        got = run.call(1 + number % 3, slots, positions, lengths, merged, cos=cos, sin=sin, ldc=dims, scale=attrs["scale"])
        _compare(native, run.storage, bool((positions + 1 == lengths).all()), got, want[0], rotated=True)


@pytest.mark.parametrize("threads", [1, 2, 3, 7, 16])
def test_heads_cut_between_threads(native: Any, reference: Any, make_scratch: Any, scratch_intact: Any, threads: int) -> None:
    """Whatever the number of threads, each has its part of the step's pages: of 3 heads with 9 pages and 3 with 1 here."""
    run = Run(native, make_scratch, 0)
    attrs = {"layer": 0, "scale": 0.125}
    plain = Plain()
    for step in ([(1, 0, 270)], [(1, 270, 1), (0, 0, 1)], [(0, 1, 1), (1, 271, 1)]):
        slots, positions, lengths, merged = run.prepare(step)
        q, k, v = run.split(merged)
        (want,) = reference("attention", attrs, [q, k, v, None, None], StepContext(slots, positions, plain))
        got = run.call(threads, slots, positions, lengths, merged, scale=0.125)
        scratch_intact(run.block)
        np.testing.assert_allclose(got, want[0], rtol=2e-5, atol=1e-5)


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
    for lengths in (np.array([1, 41], np.int32), np.array([1, 42], np.int32)):  # both ways
        for kernel in KERNELS[:2]:
            native.call(kernel, lengths=lengths, sync=np.zeros(16, np.int32), **args)
        assert (store == 0x11).all()
        assert (y == 0).all()
        y[:] = 9
