"""Packed weights: every format, any size, extreme values; against an element-by-element reading of the documented layout."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixplan.runtime.dtypes import DType, f32_to_bf16
from mixplan.runtime.errors import InternalError, OptionError
from mixplan.runtime.formats import WeightFormat
from mixplan.runtime.packing import (
    Quantized,
    concat_experts,
    dequantize,
    interleave_gated,
    pack,
    packed_layout,
    quantize_act,
    slice_blocks,
    split_gated,
    unpack,
    unpack_codes,
    unpack_rows,
)

FLOAT_FORMATS = [WeightFormat.of("f32"), WeightFormat.of("bf16")]
INTEGER_FORMATS = [
    WeightFormat.of(name, group, symmetric)
    for name, groups in (("i8", (0, 32, 64, 128)), ("i4", (32, 64, 128)))
    for group in groups
    for symmetric in (True, False)
]
sizes = st.tuples(st.integers(1, 70), st.integers(1, 300))
EXTREMES = np.array([0.0, -0.0, 1.0, -1.0, 3.4e38, -3.4e38, 1e-45, 1e-38, np.inf, -np.inf, np.nan, 2**-133], np.float32)


@st.composite
def float_rows(draw):
    n, k = draw(sizes)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return np.where(rng.random((n, k)) < 0.3, rng.choice(EXTREMES, (n, k)), rng.standard_normal((n, k)).astype(np.float32))


@st.composite
def quantized_rows(draw, fmt):
    """Codes and zero points over the whole range, its ends often; scales down to the smallest and up to the largest of their dtype."""
    n, k = draw(sizes)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    top, groups = fmt.levels - 1, fmt.groups(k)

    def integers(shape):
        return np.where(rng.random(shape) < 0.3, rng.choice([0, top], shape), rng.integers(0, top + 1, shape)).astype(np.uint8)

    limits = np.finfo(fmt.scale_dtype.numpy)
    extremes = np.array([0, limits.smallest_subnormal, limits.max, 1], fmt.scale_dtype.numpy)
    ordinary = rng.uniform(1e-3, 1, (n, groups)).astype(fmt.scale_dtype.numpy)
    scales = np.where(rng.random((n, groups)) < 0.2, rng.choice(extremes, (n, groups)), ordinary)
    return Quantized(integers((n, k)), scales, None if fmt.symmetric else integers((n, groups)))


def check_layout(fmt, packed, rows, columns, copies=1):
    seen = {role: (array.dtype, array.shape) for role, array in packed.items()}
    assert seen == {role: (dtype.numpy, shape) for role, (dtype, shape) in packed_layout(fmt, rows, columns, copies).items()}
    assert all(array.flags.c_contiguous for array in packed.values())


@pytest.mark.parametrize("fmt", FLOAT_FORMATS, ids=lambda f: f.name)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_float_formats_round_trip(fmt, data):
    w = data.draw(float_rows())
    n, k = w.shape
    packed = pack(fmt, w)
    check_layout(fmt, packed, n, k)
    restored = unpack(fmt, packed, n, k)
    if fmt.bits == 32:
        np.testing.assert_array_equal(restored, w)
    else:
        np.testing.assert_array_equal(f32_to_bf16(restored), f32_to_bf16(w))
    assert not unpack(fmt, packed, -(-n // 16) * 16, fmt.padded_columns(k))[n:].any()
    chosen = data.draw(st.lists(st.integers(0, n - 1), max_size=5))
    np.testing.assert_array_equal(unpack_rows(fmt, packed, np.array(chosen, np.int64), k), restored[chosen])


@pytest.mark.parametrize("fmt", INTEGER_FORMATS, ids=str)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_integer_formats_round_trip(fmt, data):
    rows = data.draw(quantized_rows(fmt))
    n, k = rows.codes.shape
    packed = pack(fmt, rows)
    check_layout(fmt, packed, n, k)
    back = unpack_codes(fmt, packed)
    np.testing.assert_array_equal(back.codes[:n, :k], rows.codes)
    np.testing.assert_array_equal(back.scales[:n], rows.scales.astype(np.float32))
    zeros = np.full(rows.scales.shape, fmt.zero_point, np.uint8) if rows.zeros is None else rows.zeros
    np.testing.assert_array_equal(back.zeros[:n], zeros)

    def spread(x):
        return np.repeat(x, fmt.group_size or k, axis=1)[:, :k].astype(np.float64)

    with np.errstate(over="ignore"):  # the largest f32 scale times a code is infinite
        wanted = (spread(rows.scales) * (rows.codes - spread(zeros))).astype(np.float32)
    restored, padded = unpack(fmt, packed, n, k), dequantize(fmt, back)
    np.testing.assert_array_equal(restored, wanted)
    assert not padded[n:].any() and not padded[:, k:].any()
    chosen = data.draw(st.lists(st.integers(0, n - 1), max_size=5))
    np.testing.assert_array_equal(unpack_rows(fmt, packed, np.array(chosen, np.int64), k), restored[chosen])


def read_code(fmt, weight, n, k):
    """One code, by the documented layout."""
    block, lane = divmod(n, 16)
    if fmt.bits == 8:
        return weight[block, k // 4, lane, k % 4]
    byte = weight[block, k // 8, lane, k % 4]
    return byte >> 4 if k % 8 >= 4 else byte & 15


@pytest.mark.parametrize("fmt", INTEGER_FORMATS, ids=str)
def test_the_layout_of_codes_is_the_documented_one(fmt):
    rng = np.random.default_rng(0)
    n, k = 21, 70
    groups = fmt.groups(k)
    rows = Quantized(
        rng.integers(0, fmt.levels, (n, k), np.uint8),
        rng.random((n, groups)).astype(fmt.scale_dtype.numpy),
        None if fmt.symmetric else rng.integers(0, fmt.levels, (n, groups), np.uint8),
    )
    packed = pack(fmt, rows)
    for i, j in np.ndindex(n, k):
        assert read_code(fmt, packed["weight"], i, j) == rows.codes[i, j]
    for i, g in np.ndindex(n, groups):
        assert packed["scales"][i // 16, g, i % 16] == rows.scales[i, g]
        assert fmt.symmetric or packed["zeros"][i // 16, g, i % 16] == rows.zeros[i, g]


def test_the_layout_of_floats_is_the_documented_one():
    w = np.random.default_rng(0).standard_normal((21, 7)).astype(np.float32)
    f32, bf16 = (pack(fmt, w)["weight"] for fmt in FLOAT_FORMATS)
    bits = f32_to_bf16(w)
    for n, k in np.ndindex(w.shape):
        assert f32[n // 16, k, n % 16] == w[n, k]
        assert bf16[n // 16, k // 2, n % 16, k % 2] == bits[n, k]


def every_format(draw_rows_of, size, seed=0):
    """(format, rows) for each format."""
    for fmt in [*FLOAT_FORMATS, *INTEGER_FORMATS]:
        yield fmt, draw_rows_of(fmt, size, seed)


def rows_of(fmt, size, seed):
    rng = np.random.default_rng(seed)
    n, k = size
    if not fmt.quantized:
        return rng.standard_normal(size).astype(np.float32)
    zeros = None if fmt.symmetric else rng.integers(0, fmt.levels, (n, fmt.groups(k)), np.uint8)
    return Quantized(rng.integers(0, fmt.levels, size, np.uint8), rng.random((n, fmt.groups(k))).astype(fmt.scale_dtype.numpy), zeros)


def part_of(rows, start, stop):
    if isinstance(rows, Quantized):
        return Quantized(rows.codes[start:stop], rows.scales[start:stop], None if rows.zeros is None else rows.zeros[start:stop])
    return rows[start:stop]


def test_streamed_chunks_are_the_blocks_of_the_whole():
    for fmt, rows in every_format(rows_of, (75, 70)):
        whole = pack(fmt, rows)
        chunks = [pack(fmt, part_of(rows, start, start + 32)) for start in range(0, 75, 32)]
        for role, array in whole.items():
            assert b"".join(chunk[role].tobytes() for chunk in chunks) == array.tobytes()
            np.testing.assert_array_equal(slice_blocks(whole, 2, 4)[role], chunks[1][role])


def test_gated_weights_alternate_blocks():
    for fmt, gate_rows in every_format(rows_of, (37, 70)):
        gate, up = pack(fmt, gate_rows), pack(fmt, rows_of(fmt, (37, 70), seed=1))
        both = interleave_gated(gate, up)
        check_layout(fmt, both, 37, 70, copies=2)
        for role, array in both.items():
            for block in range(3):
                np.testing.assert_array_equal(array[2 * block], gate[role][block])
                np.testing.assert_array_equal(array[2 * block + 1], up[role][block])
        for half, wanted in zip(split_gated(both), (gate, up), strict=True):
            np.testing.assert_array_equal(unpack(fmt, half, 37, 70), unpack(fmt, wanted, 37, 70))


def test_experts_follow_one_another():
    for fmt, _ in every_format(rows_of, (21, 70)):
        experts = [pack(fmt, rows_of(fmt, (21, 70), seed)) for seed in range(3)]
        packed = concat_experts(experts)
        check_layout(fmt, packed, 21, 70, copies=3)
        for e, expert in enumerate(experts):
            np.testing.assert_array_equal(unpack(fmt, slice_blocks(packed, 2 * e, 2 * e + 2), 21, 70), unpack(fmt, expert, 21, 70))


def test_packing_leaves_its_input_alone():
    for fmt, rows in every_format(rows_of, (37, 70)):
        arrays = [rows] if not isinstance(rows, Quantized) else [a for a in (rows.codes, rows.scales, rows.zeros) if a is not None]
        for array in arrays:
            array.flags.writeable = False
        pack(fmt, rows)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 5),
    st.integers(1, 300),
    st.sampled_from([0, 32, 64, 128]),
    st.integers(0, 2**32 - 1),
    st.sampled_from([1e-30, 1.0, 1e30]),
)
def test_quantized_activations_are_within_half_a_step(rows, columns, group, seed, size):
    x = np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32) * np.float32(size)
    q, scales, sums = quantize_act(x, group)
    width = group or q.shape[1]
    assert q.dtype == np.int8 and q.shape[1] % 32 == 0 and q.min() >= -127 and not q[:, columns:].any()
    spread = np.repeat(scales, width, axis=1)
    assert (np.abs(q[:, :columns] * spread[:, :columns] - x) <= spread[:, :columns] * 0.50001).all()
    totals = q.reshape(rows, -1, width).sum(-1, dtype=np.int64)
    np.testing.assert_array_equal(sums, scales * totals.astype(np.float32))


def test_effective_bits_count_scales_and_zero_points():
    assert WeightFormat.of("f32").effective_bits(7, 9) == 32
    assert WeightFormat.of("bf16").effective_bits(7, 9) == 16
    assert WeightFormat.of("i8").effective_bits(64, 128) == 8 + 32 / 128
    assert WeightFormat.of("i4", 128).effective_bits(64, 256) == 4 + 16 / 128
    assert WeightFormat.of("i4", 32, False).effective_bits(64, 256) == 4 + 24 / 32
    # A tail group has a scale of its own.
    assert WeightFormat.of("i4", 128).effective_bits(1, 130) == 4 + 2 * 16 / 130


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: WeightFormat.of("i3"), "'i3' is not known; allowed: f32, bf16, i8, i4"),
        (lambda: WeightFormat(5), "5 bits"),
        (lambda: WeightFormat.of("i4"), "i4 with group_size 0 is not supported"),
        (lambda: WeightFormat.of("i8", 16), "i8 with group_size 16 is not supported"),
        (lambda: WeightFormat.of("bf16", 32), "bf16 with group_size 32 is not supported"),
        (lambda: WeightFormat.of("f32", 0, False), "cannot be asymmetric"),
        (lambda: WeightFormat(4, 32, True, DType.f32), "held as f16"),
    ],
)
def test_formats_without_a_layout_are_refused(make, text):
    with pytest.raises(OptionError, match=text):
        make()


def test_packing_the_wrong_kind_of_rows_is_refused():
    fmt = WeightFormat.of("i4", 32)
    with pytest.raises(InternalError, match="i8 and i4 take Quantized"):
        pack(fmt, np.zeros((4, 32), np.float32))
    with pytest.raises(InternalError, match="needs \\[4, 2\\]"):
        pack(fmt, Quantized(np.zeros((4, 64), np.uint8), np.zeros((4, 1), np.float16)))
