// Rows of a packed table, dequantized. The table is the same bytes that linear reads (tied weights are stored once).
#pragma once
#include "product_f32.h"

namespace mp {

MP_INLINE float f16_scalar(const uint16_t* p) {
  u16x16 h = {};
  h[0] = *p;
  return f16_to_f32(h)[0];
}

// Group g's scale of one output, and its zero point or minimum.
template <class W>
MP_INLINE float one_scale(const Scales<W>& s, int64_t g, int64_t lane) {
  if constexpr (W::kScale == Scale::F32) return ((const float*)s.at)[g * kLanes + lane];
  else if constexpr (W::kScale == Scale::F16) return f16_scalar((const uint16_t*)s.at + g * kLanes + lane);
  else return (float)((const int8_t*)s.at)[g * kLanes + lane] * s.row[lane];
}

template <class W, int K>
MP_INLINE void embedding_row(const EmbeddingArgs& a, int64_t id, float* y) {
  constexpr int64_t kPadded = W::padded(K), kGroups = W::groups(K), kWidth = kPadded / kGroups;
  const int64_t block = id / kLanes, lane = id % kLanes;
  if constexpr (W::kFmt == Fmt::F32) {
    const float* w = (const float*)a.w + block * K * kLanes + lane;
    for (int64_t k = 0; k < K; k++) y[k] = w[k * kLanes];
  } else if constexpr (W::kFmt == Fmt::BF16) {
    const uint16_t* w = (const uint16_t*)a.w + block * kPadded * kLanes + lane * 2;
    for (int64_t k = 0; k < K; k++) {
      const uint32_t bits = (uint32_t)w[k / 2 * 32 + k % 2] << 16;
      memcpy(y + k, &bits, 4);
    }
  } else {
    const uint8_t* w = (const uint8_t*)a.w + block * W::block_bytes(K);
    const Scales<W> scales = block_scales<W>(a.scales, block, kGroups);
    for (int64_t g = 0; g < kGroups; g++) {
      const int64_t at = (block * kGroups + g) * kLanes + lane;
      const float scale = one_scale(scales, g, lane);
      const int zero = W::kZeros == Zero::Point ? ((const uint8_t*)a.zeros)[at] : W::kBook ? 0 : W::kZero;
      const float minimum = W::kZeros == Zero::Minimum ? f16_scalar((const uint16_t*)a.zeros + at) : 0.0f;
      const int64_t end = min_of((g + 1) * kWidth, K);
      for (int64_t k = g * kWidth; k < end; k++) {
        const int code = code_at<W::kFmt>(w + k / kUnitColumns * (kUnitColumns * kLanes * W::kBits / 8), lane, k % kUnitColumns);
        if constexpr (W::kFloats) y[k] = e4m3_number((uint8_t)code) * scale;
        else y[k] = (float)((W::kBook ? book_entry<W::kBits>(code) : code) - zero) * scale;
        if constexpr (W::kZeros == Zero::Minimum) y[k] += minimum;
      }
    }
  }
}

template <class W, int K>
MP_TASK void embedding(const EmbeddingArgs& a, int tid, int nt) {
  const Range rows = share(a.m, tid, nt);
  for (int64_t r = rows.begin; r < rows.end; r++) {
    float* y = a.y + r * a.ldy;
    const int64_t id = a.ids[r];
    if (id < 0 || id >= a.rows) memset(y, 0, K * sizeof(float));
    else embedding_row<W, K>(a, id, y);
  }
}

}  // namespace mp
