// Rows of a packed table, dequantized. The table is the same bytes that linear reads (tied weights are stored once).
#pragma once
#include "product_f32.h"

namespace mp {

MP_INLINE float f16_scalar(const uint16_t* p) {
  u16x16 h = {};
  h[0] = *p;
  return f16_to_f32(h)[0];
}

template <Fmt F, bool ASYM, int K, int GROUP>
MP_INLINE void embedding_row(const EmbeddingArgs& a, int64_t id, float* y) {
  constexpr int64_t kPadded = packed_k<F>(K, GROUP), kGroups = GROUP ? kPadded / (GROUP ? GROUP : 1) : 1;
  constexpr int64_t kWidth = GROUP ? GROUP : kPadded;
  const int64_t block = id / kLanes, lane = id % kLanes;
  if constexpr (F == Fmt::F32) {
    const float* w = (const float*)a.w + block * K * kLanes + lane;
    for (int64_t k = 0; k < K; k++) y[k] = w[k * kLanes];
  } else if constexpr (F == Fmt::BF16) {
    const uint16_t* w = (const uint16_t*)a.w + block * kPadded * kLanes + lane * 2;
    for (int64_t k = 0; k < K; k++) {
      const uint32_t bits = (uint32_t)w[k / 2 * 32 + k % 2] << 16;
      memcpy(y + k, &bits, 4);
    }
  } else {
    const uint8_t* w = (const uint8_t*)a.w + block * kPadded * kLanes * Packed<F>::kBits / 8 + lane * 4;
    for (int64_t g = 0; g < kGroups; g++) {
      const int64_t at = (block * kGroups + g) * kLanes + lane;
      const float scale = GROUP ? f16_scalar((const uint16_t*)a.scales + at) : ((const float*)a.scales)[at];
      const int32_t zero = ASYM ? a.zeros[at] : Packed<F>::kZero;
      const int64_t end = min_of((g + 1) * kWidth, K);
      for (int64_t k = g * kWidth; k < end; k++) {
        int32_t q;
        if constexpr (F == Fmt::I8) q = w[k / 4 * 64 + k % 4];
        else q = (w[k / 8 * 64 + k % 4] >> (k % 8 < 4 ? 0 : 4)) & 15;
        y[k] = (float)(q - zero) * scale;
      }
    }
  }
}

template <Fmt F, bool ASYM, int K, int GROUP>
MP_TASK void embedding(const EmbeddingArgs& a, int tid, int nt) {
  const Range rows = share(a.m, tid, nt);
  for (int64_t r = rows.begin; r < rows.end; r++) {
    float* y = a.y + r * a.ldy;
    const int64_t id = a.ids[r];
    if (id < 0 || id >= a.rows) memset(y, 0, K * sizeof(float));
    else embedding_row<F, ASYM, K, GROUP>(a, id, y);
  }
}

}  // namespace mp
