"""Round-to-nearest quantization: grids survive, errors are bounded, damaged weights are named."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mixplan.compiler.quantize import pack_rows, quantize_rows
from mixplan.runtime.codebooks import CODEBOOKS
from mixplan.runtime.dtypes import DType
from mixplan.runtime.errors import CheckpointError
from mixplan.runtime.formats import WeightFormat
from mixplan.runtime.packing import dequantize, pack, unpack

ALL = [
    WeightFormat.of("i4", 32),
    WeightFormat.of("i4", 64),
    WeightFormat.of("i4", 128),
    WeightFormat.of("i4", 32, symmetric=False),
    WeightFormat.of("i8"),
    WeightFormat.of("i8", symmetric=False),
    WeightFormat.of("i8", 32),
    WeightFormat.of("i8", 64, symmetric=False),
]
NEW = [
    *(WeightFormat.of(name, 32) for name in ("i6", "i5", "i3", "i2", "n5", "n4", "n3", "n2")),
    *(WeightFormat.of(name, 32, True, DType.i8) for name in ("i8", "i6", "i4", "i2", "n4", "n2")),
    WeightFormat.of("i4", 32, True, DType.f32),
    WeightFormat.of("i3", 32, False),
    WeightFormat.of("i6", 64, False, DType.i8),
]
MINIMA = [WeightFormat.of("i4", 32, False, None, DType.f16), WeightFormat.of("i5", 32, False, DType.i8, DType.f16)]


def _normal(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("fmt", ALL, ids=str)
@pytest.mark.parametrize("columns", [128, 160, 7])
def test_error_is_at_most_half_a_step(fmt: WeightFormat, columns: int) -> None:
    rows = _normal(5, columns)
    made = quantize_rows(fmt, rows, "w")
    assert made.codes.shape == (5, columns)
    assert made.scales.shape == (5, fmt.groups(columns)) and made.scales.dtype == fmt.scale_dtype.numpy
    step = np.repeat(np.abs(made.scales.astype(np.float32)), fmt.group_size or columns, axis=1)[:, :columns]
    # 4 bits may clip: with the largest divisor, 9, by one step on one side and two on the other. Scales are rounded to f16.
    limit = 2.1 if fmt.bits == 4 else 0.6
    assert (np.abs(dequantize(fmt, made) - rows.numpy()) <= limit * step + 1e-6).all()


def test_four_bits_have_little_noise() -> None:
    rows = _normal(256, 512)
    for fmt, most in ((WeightFormat.of("i4", 32), 0.0070), (WeightFormat.of("i4", 32, False), 0.0064), (WeightFormat.of("i8"), 8e-5)):
        noise = np.square(dequantize(fmt, quantize_rows(fmt, rows, "w")) - rows.numpy()).mean() / np.square(rows.numpy()).mean()
        assert noise < most


MOST_NOISE = {2: 0.15, 3: 0.04, 4: 0.0095, 5: 0.0023, 6: 6e-4, 8: 6e-5}


@pytest.mark.parametrize("fmt", [*NEW, *MINIMA], ids=str)
def test_noise_of_every_width(fmt: WeightFormat) -> None:
    """Of normal weights: about a quarter for each bit more. Codebooks beat even spacing, zero points and minima symmetric codes."""
    rows = _normal(128, 512)
    noise = _noise(fmt, rows)
    assert noise < MOST_NOISE[fmt.bits]
    if fmt.nonuniform:
        heavy = rows * torch.exp(0.5 * _normal(128, 512, seed=1))
        assert _noise(fmt, heavy) < 0.9 * _noise(WeightFormat.of(f"i{fmt.bits}", 32, True, fmt.scale_dtype), heavy)
    elif not fmt.symmetric and fmt.bits < 6:
        assert noise < _noise(WeightFormat.of(f"i{fmt.bits}", 32), rows)
    if fmt.two_level:
        assert noise < 1.05 * _noise(WeightFormat(fmt.bits, fmt.group_size, fmt.symmetric, DType.f16, fmt.nonuniform, fmt.zero_dtype), rows)


def _noise(fmt: WeightFormat, rows: torch.Tensor) -> float:
    made = dequantize(fmt, quantize_rows(fmt, rows, "w"))
    return float(np.square(made - rows.numpy()).mean() / np.square(rows.numpy()).mean())


@pytest.mark.parametrize("bits", [2, 3, 4, 5])
def test_weights_on_a_codebook_come_back_exactly(bits: int) -> None:
    fmt, rng = WeightFormat.of(f"n{bits}", 32, True, DType.f32), np.random.default_rng(0)
    book = CODEBOOKS[bits].astype(np.float32)
    codes = rng.integers(0, 1 << bits, (6, 64))
    codes[:, ::32] = 0
    rows = book[codes] * np.repeat(rng.choice([0.5, -0.25, 2.0], (6, 2)), 32, axis=1).astype(np.float32)
    made = quantize_rows(fmt, torch.from_numpy(rows), "w")
    np.testing.assert_array_equal(made.codes, codes)
    np.testing.assert_allclose(dequantize(fmt, made), rows, rtol=1e-6)


def test_weights_with_minima_come_back_exactly() -> None:
    """As the blocks of GGUF's Q4_1 are: a step and a minimum in f16, with both ends in use."""
    fmt, rng = MINIMA[0], np.random.default_rng(0)
    codes = rng.integers(0, 16, (6, 64))
    codes[:, ::32], codes[:, 1::32] = 0, 15
    scales = np.repeat(2.0 ** rng.integers(-6, 0, (6, 2)), 32, axis=1)
    minima = np.repeat(rng.integers(-9, 9, (6, 2)) / 8, 32, axis=1)
    rows = (codes * scales + minima).astype(np.float32)
    np.testing.assert_array_equal(dequantize(fmt, quantize_rows(fmt, torch.from_numpy(rows), "w")), rows)


GRIDS = [
    (WeightFormat.of("i4", 32), -8, 7),
    (WeightFormat.of("i4", 32), -7, 7),
    (WeightFormat.of("i8", 32), -127, 127),
    (WeightFormat.of("i8"), -127, 127),
]


@pytest.mark.parametrize(("fmt", "low", "high"), GRIDS, ids=str)
def test_weights_on_a_symmetric_grid_come_back_exactly(fmt: WeightFormat, low: int, high: int) -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(low, high + 1, (6, 64))
    codes[:, ::32] = low  # the largest magnitude is used, as a quantizer would have it
    scales = rng.uniform(0.01, 0.1, (6, 2 if fmt.group_size else 1)).astype(np.float16).astype(np.float32)
    rows = (codes * np.repeat(scales, 64 // scales.shape[1], axis=1)).astype(np.float32)
    np.testing.assert_array_equal(dequantize(fmt, quantize_rows(fmt, torch.from_numpy(rows), "w")), rows)


def test_weights_on_an_asymmetric_grid_come_back_exactly() -> None:
    fmt = WeightFormat.of("i4", 32, symmetric=False)
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 16, (6, 64))
    codes[:, ::32], codes[:, 1::32] = 0, 15
    zeros = np.repeat(rng.integers(0, 16, (6, 2)), 32, axis=1)
    scales = np.repeat(2.0 ** rng.integers(-6, 0, (6, 2)), 32, axis=1)
    rows = ((codes - zeros) * scales).astype(np.float32)
    np.testing.assert_array_equal(dequantize(fmt, quantize_rows(fmt, torch.from_numpy(rows), "w")), rows)


@pytest.mark.parametrize("fmt", [*ALL, *(fmt for fmt in NEW if not fmt.nonuniform)], ids=str)
def test_zeros_stay_zeros(fmt: WeightFormat) -> None:
    rows = torch.zeros(3, 64)
    rows[1] = _normal(1, 64)[0]
    rows[1, ::3] = 0
    made = dequantize(fmt, quantize_rows(fmt, rows, "w"))
    assert (made[rows.numpy() == 0] == 0).all()


@pytest.mark.parametrize("fmt", [*ALL, *NEW, *MINIMA, WeightFormat.of("bf16"), WeightFormat.of("f32")], ids=str)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_damaged_weights_are_named(fmt: WeightFormat, bad: float) -> None:
    rows = _normal(3, 64)
    rows[2, 40] = bad
    with pytest.raises(CheckpointError, match=r"Weight a\.b holds NaN or infinity"):
        pack_rows(fmt, rows, "a.b")


def test_numbers_too_large_for_f16_scales_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"a\.b holds numbers too large for f16 scales"):
        quantize_rows(WeightFormat.of("i4", 32), _normal(2, 32) * 1e7, "a.b")


@pytest.mark.parametrize("fmt", [*ALL, *NEW, *MINIMA, WeightFormat.of("bf16"), WeightFormat.of("f32")], ids=str)
def test_packing_by_chunks_is_packing_at_once(fmt: WeightFormat) -> None:
    rows = _normal(70, 96)
    whole = pack_rows(fmt, rows, "w")
    parts = [pack_rows(fmt, rows[start : start + 32], "w") for start in range(0, 70, 32)]
    for role in whole:
        np.testing.assert_array_equal(np.concatenate([part[role] for part in parts]), whole[role])
    back = unpack(fmt, whole, 70, 96)
    if fmt.bits == 32:
        np.testing.assert_array_equal(back, rows.numpy())
    elif fmt.quantized:
        np.testing.assert_array_equal(back, dequantize(fmt, quantize_rows(fmt, rows, "w")))
        np.testing.assert_array_equal(pack(fmt, quantize_rows(fmt, rows, "w"))["weight"], whole["weight"])
