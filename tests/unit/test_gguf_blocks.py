"""A GGUF's blocks taken apart: what the formats make of them is what the `gguf` package dequantizes, to the last bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Q

from mixplan.compiler.weights.gguf_blocks import BLOCK_TYPES, in_format, split_blocks
from mixplan.runtime.dtypes import DType
from mixplan.runtime.formats import WeightFormat
from mixplan.runtime.packing import dequantize, pack, unpack

_ROWS, _COLUMNS = 5, 512
# Where in a block its f16 numbers are.
_HALVES = {"Q4_0": 1, "Q4_1": 2, "Q5_0": 1, "Q5_1": 2, "Q8_0": 1, "Q4_K": 2, "Q5_K": 2}


def raw_rows(kind: str, rows: int = _ROWS, columns: int = _COLUMNS, seed: int = 0) -> np.ndarray:
    """Random bytes, every code among them, with f16 numbers of either sign."""
    rng = np.random.default_rng(seed)
    block, size = GGML_QUANT_SIZES[Q[kind]]
    raw = rng.integers(0, 256, (rows, columns // block, size), np.uint8)
    for i in range(_HALVES[kind]):
        halves = rng.standard_normal((rows, columns // block)).astype(np.float16)
        raw[..., 2 * i : 2 * i + 2] = halves[..., None].view(np.uint8)
    return raw.reshape(rows, -1)


def _format(kind: str, bits: int | None = None, minimum: bool | None = None) -> WeightFormat:
    own = BLOCK_TYPES[kind]
    least = own.minimum if minimum is None else minimum
    return WeightFormat(bits or own.bits, 32, not least, DType.f16, False, DType.f16 if least else DType.u8)


@pytest.mark.parametrize("kind", [kind for kind, own in BLOCK_TYPES.items() if not own.products])
def test_formats_hold_blocks_to_the_last_bit(kind: str) -> None:
    raw = raw_rows(kind)
    expected = gguf.dequantize(raw, Q[kind])
    fmt = _format(kind)
    held, exact = in_format(split_blocks(kind, raw), fmt)
    assert exact
    np.testing.assert_array_equal(dequantize(fmt, held), expected)
    # Bytes of a block: codes, scales and minima are all that there is.
    assert fmt.effective_bits(_ROWS, _COLUMNS) == raw.nbytes * 8 / expected.size
    np.testing.assert_array_equal(unpack(fmt, pack(fmt, held), _ROWS, _COLUMNS), expected)


@pytest.mark.parametrize(
    ("kind", "bits", "minimum"),
    [("Q4_0", 5, False), ("Q4_0", 8, False), ("Q5_0", 8, False), ("Q4_0", 4, True), ("Q4_1", 5, True), ("Q8_0", 8, True)],
)
def test_wider_formats_hold_them_as_well(kind: str, bits: int, minimum: bool) -> None:
    raw = raw_rows(kind)
    fmt = _format(kind, bits, minimum)
    held, exact = in_format(split_blocks(kind, raw), fmt)
    assert exact
    np.testing.assert_array_equal(dequantize(fmt, held), gguf.dequantize(raw, Q[kind]))


@pytest.mark.parametrize("kind", [kind for kind, own in BLOCK_TYPES.items() if own.products])
def test_k_blocks_keep_their_codes(kind: str) -> None:
    raw = raw_rows(kind)
    expected = gguf.dequantize(raw, Q[kind])
    blocks = split_blocks(kind, raw)
    assert blocks.minima is not None
    whole = blocks.scales.repeat(32, 1) * blocks.codes.astype(np.float32) + blocks.minima.repeat(32, 1)
    np.testing.assert_array_equal(whole, expected)
    fmt = _format(kind)
    held, exact = in_format(blocks, fmt)
    # Products of an f16 and six bits take more than the eleven bits of an f16; half of its last one is lost at most.
    assert not exact
    most = (abs(blocks.scales) * ((1 << blocks.kind.bits) - 1) + abs(blocks.minima)).repeat(32, 1) * 2.0**-11
    assert (abs(dequantize(fmt, held) - expected) <= most + 1e-7).all()


def test_k_blocks_of_short_numbers_are_exact() -> None:
    raw = raw_rows("Q4_K").reshape(_ROWS, -1, 144)
    for i in range(2):
        halves = (np.random.default_rng(i).integers(1, 32, raw.shape[:2]) / 64).astype(np.float16)
        raw[..., 2 * i : 2 * i + 2] = halves[..., None].view(np.uint8)
    raw = raw.reshape(_ROWS, -1)
    held, exact = in_format(split_blocks("Q4_K", raw), _format("Q4_K"))
    assert exact
    np.testing.assert_array_equal(dequantize(_format("Q4_K"), held), gguf.dequantize(raw, Q.Q4_K))


def test_a_minimum_out_of_reach_is_not_exact() -> None:
    raw = raw_rows("Q8_0")
    raw.reshape(_ROWS, -1, 34)[0, 0, :2] = np.float16(1000.0)[None].view(np.uint8)
    assert not in_format(split_blocks("Q8_0", raw), _format("Q8_0", 8, True))[1]
