// AMX tiles: eight registers of up to 16 rows of 64 bytes. A kernel keeps one shape and pads its data instead, so that the shape is loaded
// once a kernel and thread.
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

// Within its life this thread's tiles have their shape, and are zero at first; at its end they are given back, so that switching threads stays
// cheap. Tiles 0 to 3 are sums. Tiles 4 and 5 hold rows of activations, DEPTH bytes of each; tiles 6 and 7 hold weights, DEPTH / 4 rows of them.
// Tile numbers are compile-time constants: _tile_zero(0), _tile_loadd(4, pointer, stride), _tile_dpbsud(0, 4, 6) (activations signed, weights
// unsigned as [k/4][16][4]), _tile_dpbf16ps(0, 4, 6) (weights as [k/2][16][2]), _tile_stored(0, pointer, stride).
template <int DEPTH = kTileRowBytes>
struct AmxTiles {
  __attribute__((always_inline)) AmxTiles() {
    struct alignas(64) Shape {
      uint8_t palette, start, reserved[14];
      uint16_t row_bytes[16];
      uint8_t rows[16];
    } shape = {1, 0, {}, {}, {}};
    static_assert(sizeof(Shape) == 64, "as the instruction reads it");
    for (int i = 0; i < 8; i++) {
      shape.row_bytes[i] = i == 4 || i == 5 ? DEPTH : kTileRowBytes;
      shape.rows[i] = i >= 6 ? DEPTH / 4 : kTileSide;
    }
    _tile_loadconfig(&shape);
  }
  __attribute__((always_inline)) ~AmxTiles() { _tile_release(); }
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;
};
#endif

}  // namespace mp
