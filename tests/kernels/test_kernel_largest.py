"""The largest logits of each row, against numpy.argmax: ties, short last blocks, infinities and NaN."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

KERNELS: list[str] = []
EXTRA = """
extern "C" void maxima(const float* x, int64_t rows, int64_t columns, float* y, int nt) {
  for (int tid = 0; tid < nt; tid++) block_maxima(x, rows, columns, y, tid, nt);
}
extern "C" void largest(const float* x, int64_t rows, int64_t columns, const float* y, int32_t* best) {
  first_largest(x, rows, columns, y, best);
}
"""


def _find(native: Any, x: np.ndarray, threads: int) -> tuple[np.ndarray, np.ndarray]:
    rows, columns = x.shape
    blocks, best = np.full((rows, -(-columns // 64)), 7, np.float32), np.full(rows, 99, np.int32)
    shape = (ctypes.c_int64(rows), ctypes.c_int64(columns))
    place = ctypes.c_void_p
    native.library.maxima(place(x.ctypes.data), *shape, place(blocks.ctypes.data), threads)
    native.library.largest(place(x.ctypes.data), *shape, place(blocks.ctypes.data), place(best.ctypes.data))
    return blocks, best


@pytest.mark.parametrize("columns", [1, 37, 64, 65, 1000, 2048, 3001])
def test_against_numpy(native: Any, columns: int) -> None:
    rng = np.random.default_rng(columns)
    # Few different numbers, so that the largest stands in several places.
    x = rng.integers(-9, 0 if columns % 2 else 9, (5, columns)).astype(np.float32)
    x[1] = -np.inf
    x[1, columns // 2] = -3e38
    x[2, -1] = 50
    padded = np.pad(x, ((0, 0), (0, -columns % 64)), constant_values=-np.inf)
    for threads in (1, 2, 3):
        blocks, best = _find(native, x, threads)
        np.testing.assert_array_equal(blocks, padded.reshape(5, -1, 64).max(axis=2))
        np.testing.assert_array_equal(best, x.argmax(axis=1))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("columns", [5, 70, 1100])
def test_no_number_is_told(native: Any, columns: int, bad: float) -> None:
    x = np.zeros((4, columns), np.float32)
    x[1, columns // 3] = x[2, -1] = bad
    x[3] = -np.inf
    blocks, best = _find(native, x, 2)
    assert best.tolist() == [0, -1, -1, -1]
    assert np.isnan(blocks).any() == np.isnan(bad)
