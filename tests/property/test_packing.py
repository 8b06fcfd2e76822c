"""Packed weights: every format, any size, extreme values; against an element-by-element reading of the documented layout."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixplan.runtime.codebooks import CODEBOOKS
from mixplan.runtime.dtypes import DType, bf16_to_f32, f32_to_bf16
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
INTEGER_FORMATS += [WeightFormat.of(name, 32) for name in ("i2", "i3", "i5", "i6", "n2", "n3", "n4", "n5")]
INTEGER_FORMATS += [
    WeightFormat.of("i3", 64, False),
    WeightFormat.of("i6", 128, False),
    WeightFormat.of("i4", 32, True, DType.f32),
    WeightFormat.of("n5", 64, True, DType.i8),
    WeightFormat.of("i8", 32, True, DType.i8),
    WeightFormat.of("i4", 32, False, DType.i8),
    WeightFormat.of("i5", 32, False, DType.f16, DType.f16),
    WeightFormat.of("i2", 32, False, DType.i8, DType.f16),
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

    zeros = None if fmt.symmetric else integers((n, groups))
    if fmt.has_minimum:
        zeros = rng.standard_normal((n, groups)).astype(np.float16)
    if fmt.two_level:
        return Quantized(integers((n, k)), two_level_scales(rng, n, groups), zeros)
    limits = np.finfo(fmt.scale_dtype.numpy)
    extremes = np.array([0, limits.smallest_subnormal, limits.max, 1], fmt.scale_dtype.numpy)
    ordinary = rng.uniform(1e-3, 1, (n, groups)).astype(fmt.scale_dtype.numpy)
    scales = np.where(rng.random((n, groups)) < 0.2, rng.choice(extremes, (n, groups)), ordinary)
    return Quantized(integers((n, k)), scales, zeros)


def two_level_scales(rng, n, groups):
    """A bf16 for each row, also 0 or nearly the largest, times whole numbers; their largest may be small, and their sign is free."""
    row = bf16_to_f32(
        f32_to_bf16(rng.choice(np.array([0.0, 1e-30, 0.01, 3.1, 1e36], np.float32), (n, 1)) * (1 + rng.random((n, 1)).astype(np.float32)))
    )
    most = rng.choice([1, 3, 100, 127], (n, 1))
    return (row * rng.integers(-most, most + 1, (n, groups))).astype(np.float32)


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
    if fmt.nonuniform:
        assert back.zeros is None
    else:
        np.testing.assert_array_equal(back.zeros[:n], zeros)

    def spread(x):
        return np.repeat(x, fmt.group_size or k, axis=1)[:, :k].astype(np.float64)

    with np.errstate(over="ignore"):  # the largest f32 scale times a code is infinite
        if fmt.nonuniform:
            wanted = (spread(rows.scales) * CODEBOOKS[fmt.bits][rows.codes]).astype(np.float32)
        elif fmt.has_minimum:
            wanted = (spread(rows.scales) * rows.codes).astype(np.float32) + spread(zeros).astype(np.float32)
        else:
            wanted = (spread(rows.scales) * (rows.codes - spread(zeros))).astype(np.float32)
        restored, padded = unpack(fmt, packed, n, k), dequantize(fmt, back)
    np.testing.assert_array_equal(restored, wanted)
    assert not padded[n:].any()
    assert fmt.nonuniform or fmt.has_minimum or not padded[:, k:].any()
    chosen = data.draw(st.lists(st.integers(0, n - 1), max_size=5))
    np.testing.assert_array_equal(unpack_rows(fmt, packed, np.array(chosen, np.int64), k), restored[chosen])


def read_code(fmt, weight, n, k):
    """One code, by the documented layout."""
    block, lane = divmod(n, 16)
    if fmt.bits == 8:
        return weight[block, k // 4, lane, k % 4]
    if fmt.bits == 4:
        byte = weight[block, k // 8, lane, k % 4]
        return byte >> 4 if k % 8 >= 4 else byte & 15
    unit, step = divmod(k // 4, 8)
    rows = weight[block, unit * fmt.bits : (unit + 1) * fmt.bits, lane, k % 4].astype(int)
    # Planes of 4, 2 and 1 bits; of the bits of a step, the lowest come first.
    code = low = 0
    for width, plane in {2: [(2, 0)], 3: [(2, 0), (1, 2)], 5: [(4, 0), (1, 4)], 6: [(4, 0), (2, 4)]}[fmt.bits]:
        per_row = 8 // width
        code |= (rows[plane + step // per_row] >> (step % per_row * width) & ((1 << width) - 1)) << low
        low += width
    return code


@pytest.mark.parametrize("fmt", INTEGER_FORMATS, ids=str)
def test_the_layout_of_codes_is_the_documented_one(fmt):
    n, k = 21, 70
    groups = fmt.groups(k)
    rows = rows_of(fmt, (n, k), 0)
    packed = pack(fmt, rows)
    for i, j in np.ndindex(n, k):
        assert read_code(fmt, packed["weight"], i, j) == rows.codes[i, j]
    for i, g in np.ndindex(n, groups):
        if fmt.two_level:
            low, high, byte = (int(packed["scales"][i // 16, row, i % 16]) for row in (0, 1, 2 + g))
            row = bf16_to_f32(np.array([(low & 255) | (high & 255) << 8], np.uint16))[0]
            assert row * np.float32(byte) == rows.scales[i, g]
        else:
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
    groups = fmt.groups(k)
    if fmt.has_minimum:
        zeros = rng.standard_normal((n, groups)).astype(np.float16)
    else:
        zeros = None if fmt.symmetric else rng.integers(0, fmt.levels, (n, groups), np.uint8)
    scales = two_level_scales(rng, n, groups) if fmt.two_level else rng.random((n, groups)).astype(fmt.scale_dtype.numpy)
    return Quantized(rng.integers(0, fmt.levels, size, np.uint8), scales, zeros)


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
    assert WeightFormat.of("n3", 32, True, DType.i8).effective_bits(64, 256) == 3 + 8 / 32 + 16 / 256
    assert WeightFormat.of("i5", 32, False, DType.f16, DType.f16).effective_bits(64, 256) == 6
    assert WeightFormat.of("i6", 64, False, DType.f32).effective_bits(64, 256) == 6 + 40 / 64
    # A tail group has a scale of its own.
    assert WeightFormat.of("i4", 128).effective_bits(1, 130) == 4 + 2 * 16 / 130


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: WeightFormat.of("i7"), "'i7' is not known; allowed: f32, bf16, i8, i6, i5, i4, i3, i2, n5, n4, n3, n2"),
        (lambda: WeightFormat(7), "7 bits"),
        (lambda: WeightFormat(6, 32, True, DType.f16, True), "no codebook of 6 bits"),
        (lambda: WeightFormat.of("n4", 32, False), "cannot be asymmetric"),
        (lambda: WeightFormat.of("e4m3", 0, False), "cannot be asymmetric"),
        (lambda: WeightFormat.of("e4m3", 32, True, DType.f16), "of e4m3 are not held as f16; allowed: f32"),
        (lambda: WeightFormat.of("i8", 0, True, DType.i8), "per channel are not held as i8"),
        (lambda: WeightFormat.of("i4", 32, True, DType.bf16), "not held as bf16; allowed: f16, f32, i8"),
        (lambda: WeightFormat.of("i4", 32, True, None, DType.f16), "store no zero points"),
        (lambda: WeightFormat.of("i4", 32, False, None, DType.f32), "u8, or f16 minima"),
        (lambda: WeightFormat.of("i4"), "i4 with group_size 0 is not supported"),
        (lambda: WeightFormat.of("i8", 16), "i8 with group_size 16 is not supported"),
        (lambda: WeightFormat.of("bf16", 32), "bf16 with group_size 32 is not supported"),
        (lambda: WeightFormat.of("f32", 0, False), "cannot be asymmetric"),
    ],
)
def test_formats_without_a_layout_are_refused(make, text):
    with pytest.raises(OptionError, match=text):
        make()


def test_packing_the_wrong_kind_of_rows_is_refused():
    fmt = WeightFormat.of("i4", 32)
    with pytest.raises(InternalError, match="8 bits and fewer take Quantized"):
        pack(fmt, np.zeros((4, 32), np.float32))
    with pytest.raises(InternalError, match="needs \\[4, 2\\]"):
        pack(fmt, Quantized(np.zeros((4, 64), np.uint8), np.zeros((4, 1), np.float16)))
    with pytest.raises(InternalError, match="row 1 is not"):
        scales = np.array([[0.5, 12.5], [1.0, np.pi]], np.float32)
        pack(WeightFormat.of("i4", 32, True, DType.i8), Quantized(np.zeros((2, 64), np.uint8), scales))
