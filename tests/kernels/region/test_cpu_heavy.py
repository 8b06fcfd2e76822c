"""The heavy kernels as the code generator calls them: strided inputs, optional inputs, all formats, attention over several steps."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from mixplan.runtime.devices.cpu import CpuDevice
from mixplan.runtime.devices.cpu_info import runnable_levels
from mixplan.runtime.devices.reference import ReferenceDevice
from mixplan.runtime.formats import WeightFormat
from mixplan.runtime.hal import CacheSpec, DeviceOptions
from mixplan.runtime.kv_format import KvFormat
from mixplan.runtime.plan import AttentionLayer, Sym

T, R = Sym("T"), Sym("R")
SUM = (1e-4, 1e-4)  # products of some hundred terms of size 1, in another order
HALF = (1e-3, 1e-3)  # keys on the edge between two f16 fall either way
PAIRS = (3e-2, 3e-2)  # levels that multiply f16 keys and values of prompts as bf16, whose step is 2^-8
SIZES = ((1, 1), (7, 3), (65, 65), (7, 0))
FORMATS = [
    WeightFormat.of("f32"),
    WeightFormat.of("bf16"),
    WeightFormat.of("i8"),
    WeightFormat.of("i8", 32, False),
    WeightFormat.of("i4", 32),
    WeightFormat.of("i4", 64, False),
]


def _weight(kit: Any, weight: Any) -> tuple[list[int], dict[str, Any]]:
    """The inputs weight, scales, zeros (-1 where there are none) and the attributes."""
    dtypes = ["bf16" if weight.fmt.name == "bf16" else None, None, None]
    return [-1 if a is None else kit.const(a, d) for a, d in zip(weight.arrays, dtypes, strict=True)], weight.attrs


@pytest.fixture(params=["portable", "x86-64-v3", "x86-64-v4-vnni", "x86-64-v4-bf16", "x86-64-v4-amx"])
def level(request: pytest.FixtureRequest) -> str:
    """All levels, since these kernels are written for each."""
    if request.param not in runnable_levels():
        pytest.skip(f"this CPU cannot run {request.param}")
    return str(request.param)


def _sum(level: str, size: float = 1.0) -> tuple[float, float]:
    """With AMX many rows are multiplied in bf16. `size`: of what a sum is multiplied with."""
    return (1e-2, 0.1 * size) if level == "x86-64-v4-amx" else SUM


def test_linear_embedding_gated(kit: Any, make_weight: Any, level: str) -> None:
    rng = np.random.default_rng(1)
    x = kit.input(1, T, 3 * 96)
    part = kit.op("slice", x, axis=2, start=96, stop=192, out=False)
    residual = kit.op("slice", kit.input(1, T, 50), axis=2, start=7, out=False)
    bias = kit.const(rng.standard_normal(43).astype(np.float32))
    for fmt in FORMATS:
        inputs, attrs = _weight(kit, make_weight(rng, fmt, 43, 96))
        kit.op("linear", part, *inputs, tol=_sum(level), **attrs)
        kit.op("linear", part, *inputs, bias, residual, tol=_sum(level), **attrs)
        kit.op("linear", part, *inputs, -1, residual, tol=_sum(level), activation_dtype="bf16", **attrs)
        kit.op("embedding", kit.ids(43, 1, T), *inputs, tol=SUM, **attrs)
        gated, attrs = _weight(kit, make_weight(rng, fmt, 43, 96, "gated"))
        kit.op("gated_linear", part, *gated, tol=_sum(level, 30), activation="silu", **attrs)
        both = kit.const(rng.standard_normal((2, 43)).astype(np.float32))
        kit.op("gated_linear", part, *gated, both, tol=_sum(level, 30), activation="gelu_tanh", **attrs)
    kit.op("embedding", kit.ids(43, T, dtype="i32"), *_weight(kit, make_weight(rng, FORMATS[0], 43, 96))[0], **FORMAT_ATTRS)
    kit.check(level, sizes=SIZES)


FORMAT_ATTRS = {"format": "f32", "rows": 43, "columns": 96, "group_size": 0}


def test_quantized_activations(kit: Any, make_weight: Any, level: str) -> None:
    rng = np.random.default_rng(2)
    x = kit.input(1, T, 100)
    bias = kit.const(rng.standard_normal(43).astype(np.float32))
    residual = kit.input(1, T, 43)
    gamma, beta = (kit.const(rng.standard_normal(100).astype(np.float32)) for _ in range(2))
    for fmt in FORMATS[2:]:
        group = fmt.group_size
        plain = kit.op("quantize_act", x, group=group, out=False)
        normed = kit.op("rms_norm_quant", x, gamma, eps=1e-5, group=group, out=False)
        layer = kit.op("layer_norm_quant", x, gamma, beta, eps=1e-5, group=group, out=False)
        inputs, attrs = _weight(kit, make_weight(rng, fmt, 43, 100))
        kit.op("linear_q", *plain, *inputs, tol=_sum(level), **attrs)
        # A norm's last bit can move a value across a rounding border: one step of one int8 in a hundred.
        kit.op("linear_q", *normed, *inputs, bias, residual, tol=(1e-2, 0.2), **attrs)
        gated, attrs = _weight(kit, make_weight(rng, fmt, 43, 100, "gated"))
        kit.op("gated_linear_q", *layer, *gated, activation="relu", tol=(1e-2, 0.5) if level != "x86-64-v4-amx" else (1e-2, 3.0), **attrs)
    kit.check(level, sizes=SIZES)


def test_grouped_norm_rope(kit: Any, make_weight: Any, level: str) -> None:
    rng = np.random.default_rng(3)
    for fmt in (FORMATS[0], FORMATS[4]):
        inputs, attrs = _weight(kit, make_weight(rng, fmt, 24, 64, "5"))
        ids = kit.ids(6, T, 2)
        kit.op("grouped_linear", kit.input(T, 1, 64), ids, *inputs, tol=_sum(level), experts=5, **attrs)
        bias = kit.const(rng.standard_normal((5, 24)).astype(np.float32))
        kit.op("grouped_linear", kit.input(T, 2, 64), ids, *inputs, bias, tol=_sum(level), experts=5, **attrs)
    x = kit.input(1, T, 6, 20)
    heads = kit.op("slice", x, axis=2, start=1, stop=5, out=False)
    gamma, beta = (kit.const(rng.standard_normal(20).astype(np.float32)) for _ in range(2))
    kit.op("rms_norm", x, gamma, eps=1e-6, tol=SUM)
    kit.op("rms_norm", heads, -1, eps=1e-6, tol=SUM)
    kit.op("rms_norm", heads, kit.fill(2.0, 20), eps=1e-6, tol=SUM)
    kit.op("layer_norm", heads, gamma, beta, eps=1e-5, tol=SUM)
    kit.op("layer_norm", kit.op("permute", heads, axes=(0, 2, 1, 3), out=False), gamma, eps=1e-5, tol=SUM)
    cos, sin = kit.input(1, T, 12), kit.input(1, T, 12)
    for style in ("half", "interleaved"):
        kit.op("rope", heads, cos, sin, style=style)
        same = kit.op("expand", kit.const(rng.standard_normal((1, 1, 20)).astype(np.float32)), shape=(1, T, 20), out=False)
        kit.op("rope", x, same, same, style=style)
        kit.op("rope", x, same, kit.op("expand", kit.fill(0.5, 1, 1, 20), shape=(1, T, 20), out=False), style=style)
    kit.check(level, sizes=SIZES)


@pytest.mark.parametrize("case", ["plain", "gqa_window_softcap", "sinks_chunked", "slopes", "rotated"])
def test_attention_over_steps(kit: Any, level: str, case: str) -> None:
    heads, kv_heads, k_dim, v_dim = (4, 4, 16, 16) if case == "plain" else (6, 2, 24, 10)
    attrs: dict[str, Any] = {"scale": 0.25}
    if case == "gqa_window_softcap":
        attrs |= {"window": 20, "softcap": 5.0}
    if case == "sinks_chunked":
        attrs |= {"window": 16, "mask": "chunked"}
    per_head = kit.const(np.linspace(0.1, 1.0, heads, dtype=np.float32))
    extra = {"sinks_chunked": (per_head,), "slopes": (-1, per_head)}.get(case, ())
    packed = kit.input(1, T, heads * k_dim + kv_heads * (k_dim + v_dim))
    angles = [kit.input(1, T, 16) for _ in range(2)]
    halves = PAIRS if level in ("x86-64-v4-bf16", "x86-64-v4-amx") else HALF
    for layer in range(2):
        ends = np.cumsum([0, heads * k_dim, kv_heads * k_dim, kv_heads * v_dim])
        parts = [kit.op("slice", packed, axis=2, start=int(a), stop=int(b), out=False) for a, b in pairwise(ends)]
        shapes = ((1, T, heads, k_dim), (1, T, kv_heads, k_dim), (1, T, kv_heads, v_dim))
        q, k, v = (kit.op("reshape", part, shape=shape, out=False) for part, shape in zip(parts, shapes, strict=True))
        if case == "rotated":
            q, k = (kit.op("rope", x, *angles, style="interleaved" if layer else "half", out=False) for x in (q, k))
        kit.op("attention", q, k, v, *extra, layer=layer, tol=halves if layer else SUM, **attrs)
        kit.layers.append(AttentionLayer(kv_heads, k_dim, v_dim, KvFormat.f16 if layer else KvFormat.f32))
    loaded = kit.loaded(level)
    caches = CacheSpec(pages=32, page_size=32, max_sequences=4, max_pages_per_sequence=8)
    slow = ReferenceDevice(DeviceOptions()).load(loaded, 0, caches)
    tables = np.random.default_rng(0).permutation(32).reshape(4, 8)
    steps = [
        (np.arange(40), np.full(40, 1)),
        (np.r_[np.arange(40, 41), np.arange(9)], np.r_[[1], np.full(9, 3)]),
        ([41, 9], [1, 3]),
        (np.r_[np.arange(10, 60), np.arange(42, 57)], np.r_[np.full(50, 3), np.full(15, 1)]),
        ([30], [3]),  # going back
    ]
    for threads in (1, 2):
        fast = CpuDevice(DeviceOptions(threads=threads, isa=level)).load(loaded, 0, caches)
        for number, (positions, slots) in enumerate(steps):
            step = kit.step(len(positions), 1, positions=positions, slots=slots, tables=tables)
            data = kit.data(len(positions), 1, seed=number)
            kit.compare(fast.run(step, data), slow.run(step, data), f"{case} {level} {threads} threads step {number}")
        fast.close()


# Codes: single tokens meet them in numbers of 16 bits, prompts in f32 or in pairs of bf16; a code that the last bit of a rotation or of
# a scale tips to its neighbour is off by a fifteenth of a value's range.
CODES = (0.05, 0.05)


@pytest.mark.parametrize("case", ["mixed_heads", "mixed_rotated_sinks", "integer_scores", "integer_scores_window"])
def test_codes_in_the_cache(kit: Any, level: str, case: str) -> None:
    heads, kv_heads, k_dim, v_dim = 8, 4, 40, 20
    attrs: dict[str, Any] = {"scale": 0.15}
    formats = [(KvFormat.i8, KvFormat.i8, KvFormat.f16, KvFormat.i4), (KvFormat.f32, KvFormat.k8v4, KvFormat.k8v4, KvFormat.i8)]
    if case.startswith("integer"):
        attrs["scores"] = "i8"
        formats = [(KvFormat.i8,) * 4, (KvFormat.i4, KvFormat.i4, KvFormat.k8v4, KvFormat.i8)]
    if case.endswith("window"):
        attrs |= {"window": 20, "softcap": 5.0}
    extra = (kit.const(np.linspace(0.1, 1.0, heads, dtype=np.float32)),) if case.endswith("sinks") else ()
    packed = kit.input(1, T, heads * k_dim + kv_heads * (k_dim + v_dim))
    angles = [kit.input(1, T, 16) for _ in range(2)]
    for layer in range(2):
        ends = np.cumsum([0, heads * k_dim, kv_heads * k_dim, kv_heads * v_dim])
        parts = [kit.op("slice", packed, axis=2, start=int(a), stop=int(b), out=False) for a, b in pairwise(ends)]
        shapes = ((1, T, heads, k_dim), (1, T, kv_heads, k_dim), (1, T, kv_heads, v_dim))
        q, k, v = (kit.op("reshape", part, shape=shape, out=False) for part, shape in zip(parts, shapes, strict=True))
        if "rotated" in case:
            q, k = (kit.op("rope", x, *angles, style="half", out=False) for x in (q, k))
        kit.op("attention", q, k, v, *extra, layer=layer, tol=CODES, **attrs)
        alike = len(set(formats[layer])) == 1
        kit.layers.append(
            AttentionLayer(kv_heads, k_dim, v_dim, formats[layer][0], attrs.get("window", 0), () if alike else formats[layer])
        )
    loaded = kit.loaded(level)
    caches = CacheSpec(pages=32, page_size=32, max_sequences=4, max_pages_per_sequence=8)
    slow = ReferenceDevice(DeviceOptions()).load(loaded, 0, caches)
    tables = np.random.default_rng(0).permutation(32).reshape(4, 8)
    steps = [
        (np.arange(40), np.full(40, 1)),
        (np.r_[np.arange(40, 41), np.arange(33)], np.r_[[1], np.full(33, 3)]),
        ([41, 33], [1, 3]),
        ([30], [3]),  # going back
        (np.r_[np.arange(31, 81), np.arange(42, 57)], np.r_[np.full(50, 3), np.full(15, 1)]),
        ([57, 81], [1, 3]),
    ]
    for threads in (1, 2):
        fast = CpuDevice(DeviceOptions(threads=threads, isa=level)).load(loaded, 0, caches)
        for number, (positions, slots) in enumerate(steps):
            step = kit.step(len(positions), 1, positions=positions, slots=slots, tables=tables)
            data = kit.data(len(positions), 1, seed=number)
            kit.compare(fast.run(step, data), slow.run(step, data), f"{case} {level} {threads} threads step {number}")
        fast.close()
