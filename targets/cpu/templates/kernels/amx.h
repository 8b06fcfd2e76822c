// AMX tiles: eight registers of 16 rows by 64 bytes. Every kernel that uses them has them in this one shape and pads its data instead, so
// that the shape is loaded once a kernel and thread, and no tile instruction waits for another shape.
//
// The process must have been granted the tiles (runtime/devices/cpu_amx.py does that before threads start).
#pragma once
#include "vec.h"

#if defined(__AMX_TILE__) && defined(__AMX_INT8__) && defined(__AMX_BF16__)
#define MP_AMX 1
#endif

namespace mp {

#if defined(MP_AMX)
constexpr int kTileSide = 16, kTileRowBytes = 64, kTileBytes = 1024;

// Within its life this thread's tiles have the full shape; at its end they are given back, so that switching threads stays cheap. What they
// hold at first is zero. Tile numbers are compile-time constants: _tile_zero(0), _tile_loadd(4, pointer, stride), _tile_dpbsud(0, 4, 6) (A
// signed, B unsigned; B as [k/4][16][4]), _tile_dpbf16ps(0, 4, 6) (B as [k/2][16][2]), _tile_stored(0, pointer, stride).
struct AmxTiles {
  __attribute__((always_inline)) AmxTiles() {
    struct alignas(64) Shape {
      uint8_t palette, start, reserved[14];
      uint16_t row_bytes[16];
      uint8_t rows[16];
    } shape = {1, 0, {}, {}, {}};
    static_assert(sizeof(Shape) == 64, "as the instruction reads it");
    for (int i = 0; i < 8; i++) shape.row_bytes[i] = kTileRowBytes, shape.rows[i] = kTileSide;
    _tile_loadconfig(&shape);
  }
  __attribute__((always_inline)) ~AmxTiles() { _tile_release(); }
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;
};
#endif

}  // namespace mp
