"""8-bit floats: all 256 codes, rounding against torch's own type and at every border, saturation, rows with scales."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mixplan.runtime.float8 import E4M3, decode, encode, quantize, round_rows

CODES = np.arange(256, dtype=np.uint8)
NAN = CODES & 127 == 127


def test_every_code_is_its_number_and_comes_back() -> None:
    numbers = torch.from_numpy(CODES).view(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(decode(CODES), numbers)
    np.testing.assert_array_equal(np.signbit(E4M3), np.signbit(numbers))
    np.testing.assert_array_equal(encode(E4M3), CODES)
    assert E4M3[0x7E] == 448 and np.isnan(E4M3[NAN]).all() and NAN.sum() == 2


def test_borders_between_neighbours() -> None:
    """Halfway the even mantissa wins; one step of f32 beside it, the nearer number. That includes subnormals and 0."""
    positive = E4M3[:127]
    middle = (positive[:-1] + positive[1:]) / 2
    even = np.where(CODES[:126] % 2 == 0, CODES[:126], CODES[1:127])
    for sign, bit in ((1, 0), (-1, 128)):
        np.testing.assert_array_equal(encode(sign * middle), even | bit)
        np.testing.assert_array_equal(encode(sign * np.nextafter(middle, np.float32(0))), CODES[:126] | bit)
        np.testing.assert_array_equal(encode(sign * np.nextafter(middle, np.float32(500))), CODES[1:127] | bit)


def test_what_is_too_large_or_too_small() -> None:
    x = np.array([448.1, 464, 465, 1e30, np.inf, -np.inf, 0.0, -0.0, 1e-30, -1e-45, 2**-10, 2**-10 * 1.001, np.nan, -np.nan], np.float32)
    wanted = [0x7E] * 5 + [0xFE, 0, 0x80, 0, 0x80, 0, 1, 0x7F, 0xFF]
    np.testing.assert_array_equal(encode(x), wanted)
    assert encode(np.float32(1.0)).shape == () and encode(x[None, ::2]).shape == (1, 7)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-480, 480, width=32), min_size=1, max_size=200))
def test_rounding_is_that_of_torch(x: list[float]) -> None:
    values = np.array(x, np.float32)
    wanted = torch.from_numpy(values).clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    np.testing.assert_array_equal(encode(values), wanted)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=100))
def test_rows_reach_448_and_keep_their_ratios(x: list[float]) -> None:
    row = np.array(x, np.float32)[None]
    codes, scales = quantize(row)
    largest = np.abs(row).max()
    assert codes.shape == row.shape and scales.shape == (1, 1) and not NAN[codes].any()
    if largest < 2.0**-100:
        assert scales == 1
    else:
        assert np.abs(decode(codes)).max() == 448
        # Half a step of four bits of mantissa, or of the subnormals; the reciprocal of the scale is rounded too.
        error = np.abs(round_rows(row).astype(np.float64) - row)
        assert (error <= np.maximum(np.abs(row) * 2.0**-4, scales[0, 0] * 2.0**-10) * (1 + 2.0**-20)).all()


def test_a_row_that_is_not_finite_spoils_itself_alone() -> None:
    x = np.ones((3, 40), np.float32)
    x[0, 3], x[1, 3] = np.nan, np.inf
    assert not np.isfinite(round_rows(x)[:2]).any() and (round_rows(x)[2] == 1).all()
