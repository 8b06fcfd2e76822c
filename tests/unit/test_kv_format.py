"""Codes of keys and values: the definition against a plain loop, errors against their bound, odd numbers, bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from mixplan.runtime.kv_format import CODES, KvCodes, KvFormat, dequantize, quantize


def plain(x: np.ndarray, held: KvCodes) -> np.ndarray:
    """One head, group by group."""
    out = np.empty_like(x)
    width = held.group or len(x)
    for start in range(0, len(x), width):
        part = x[start : start + width]
        scale = np.float32(np.float16((part.max() - part.min()) / np.float32(held.top)))
        minimum = np.float32(np.float16(part.min()))
        for i, number in enumerate(part):
            code = np.float32(0) if scale == 0 else np.clip(np.rint((number - minimum) * (np.float32(1) / scale)), 0, held.top)
            out[start + i] = scale * np.float32(code) + minimum
    return out


@pytest.mark.parametrize("bits", CODES)
@pytest.mark.parametrize("dim", [1, 20, 32, 33, 64, 100])
def test_against_a_plain_loop(bits: int, dim: int) -> None:
    x = (np.random.default_rng(dim).standard_normal((7, 3, dim)) * 2 + 1).astype(np.float32)
    codes, scales, minima = quantize(x, CODES[bits])
    assert codes.max() <= CODES[bits].top
    assert scales.shape == minima.shape == (7, 3, CODES[bits].groups(dim))
    got = dequantize(codes, scales, minima, CODES[bits])
    np.testing.assert_array_equal(got, np.stack([[plain(head, CODES[bits]) for head in token] for token in x]))


@settings(max_examples=200, deadline=None)
@given(arrays(np.float32, (2, 40), elements=st.floats(-30000, 30000, width=32)), st.sampled_from([8, 4]))
def test_errors_are_within_a_step(x: np.ndarray, bits: int) -> None:
    """Half a step, and what rounding minimum and scale to f16 adds: 2^-11 of the largest number and of the range (or f16's least)."""
    held = CODES[bits]
    off = np.abs(dequantize(*quantize(x, held), held) - x)
    for start in range(0, 40, held.group or 40):
        part = x[:, start : start + (held.group or 40)]
        spread = part.max(-1) - part.min(-1)
        bound = spread / held.top / 2 + 2**-11 * (np.abs(part).max(-1) + spread) + 2**-24 * held.top + 1e-6
        assert (off[:, start : start + (held.group or 40)] <= bound[:, None] * 1.001).all()


def test_what_is_no_number_stays_none() -> None:
    x = np.ones((1, 64), np.float32)
    x[0, 40] = np.nan
    for held in CODES.values():
        got = dequantize(*quantize(x, held), held)
        assert np.isnan(got[0, 40])
        assert np.isnan(got[0, :32]).any() == (held.group == 0)


def test_equal_elements_are_kept() -> None:
    for held in CODES.values():
        np.testing.assert_array_equal(dequantize(*quantize(np.full((1, 5), 0.75, np.float32), held), held), 0.75)


@pytest.mark.parametrize(
    ("held", "size"),
    [("f32", 512), ("f16", 256), ("bf16", 256), ("i8", 64 + 4 + 64 + 4), ("i4", 32 + 8 + 32 + 8), ("k8v4", 64 + 4 + 32 + 8), ("fp8", 128)],
)
def test_bytes_of_a_token(held: str, size: int) -> None:
    assert KvFormat(held).token_bytes(64, 64) == size
