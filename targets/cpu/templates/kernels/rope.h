// Rotary embedding of token-major heads.
#pragma once
#include "args.h"
#include "vec.h"

namespace mp {

template <int D, int DR, Rope STYLE>
MP_INLINE void rope_head(const float* x, const float* cos, const float* sin, float* y) {
  static_assert(DR <= D && DR % 2 == 0, "the rotated dims are pairs inside the head");
  if constexpr (STYLE == Rope::Half) {
    constexpr int64_t kHalf = DR / 2;
    for (int64_t i = 0; i < kHalf; i += kLanes) {
      const int64_t n = kHalf - i;
      const f32x16 a = load_n(x + i, n), b = load_n(x + kHalf + i, n);
      const f32x16 ya = a * load_n(cos + i, n) - b * load_n(sin + i, n);
      const f32x16 yb = b * load_n(cos + kHalf + i, n) + a * load_n(sin + kHalf + i, n);
      store_n(y + i, ya, n);
      store_n(y + kHalf + i, yb, n);
    }
  } else {
    const i32x16 odd = lane_numbers() & 1;
    const i32x16 sign = (odd ^ 1) << 31;  // even lanes take minus their neighbour
    for (int64_t i = 0; i < DR; i += kLanes) {
      const int64_t n = DR - i;
      const f32x16 v = load_n(x + i, n);
      const f32x16 swapped = __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
      store_n(y + i, v * load_n(cos + i, n) + (f32x16)((i32x16)swapped ^ sign) * load_n(sin + i, n), n);
    }
  }
  if (x != y) {
    for (int64_t i = DR; i < D; i += kLanes) store_n(y + i, load_n(x + i, D - i), D - i);
  }
}

template <int D, int DR, Rope STYLE>
MP_TASK void rope(const RopeArgs& a, int tid, int nt) {
  const Range rows = share(a.t * a.heads, tid, nt);
  for (int64_t r = rows.begin; r < rows.end; r++) {
    const int64_t t = r / a.heads, h = r % a.heads;
    rope_head<D, DR, STYLE>(a.x + t * a.ldx + h * a.ldx_head, a.cos + t * a.ldc, a.sin + t * a.ldc, a.y + t * a.ldy + h * a.ldy_head);
  }
}

}  // namespace mp
