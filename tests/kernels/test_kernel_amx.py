"""AMX tiles: the shape that amx.h loads, and the operand order that the packed layouts rely on. Levels without AMX have nothing to test."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

KERNELS: list[str] = []
EXTRA = """
#include "amx.h"
extern "C" void int8_tile(const void* a, const void* b, int32_t* c) {
#if defined(MP_AMX)
  AmxTiles<> tiles;
  _tile_zero(0);
  _tile_loadd(4, a, kTileRowBytes);
  _tile_loadd(6, b, kTileRowBytes);
  _tile_dpbsud(0, 4, 6);
  _tile_stored(0, c, kTileRowBytes);
#else
  (void)a, (void)b, (void)c;
#endif
}
"""


def test_signed_activations_times_packed_unsigned_weights(native: Any) -> None:
    rng = np.random.default_rng(1)
    a = rng.integers(-128, 128, (16, 64), dtype=np.int8)
    w = rng.integers(0, 256, (16, 64), dtype=np.uint8)  # [output][k]
    packed = np.ascontiguousarray(w.reshape(16, 16, 4).transpose(1, 0, 2))  # [k/4][output][4]
    c = np.full((16, 16), 7, np.int32)
    native.library.int8_tile(*(ctypes.c_void_p(array.ctypes.data) for array in (a, packed, c)))
    want = a.astype(np.int32) @ w.T.astype(np.int32) if native.level == "amx" else np.full((16, 16), 7)
    np.testing.assert_array_equal(c, want)
