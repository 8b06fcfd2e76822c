// Activations to int8, alone or straight from a norm: per group q = round(x / s), s = absmax / 127, and s * sum(q).
#pragma once
#include "norm.h"

namespace mp {

MP_INLINE float magnitude_max(i32x16 m) {
  int32_t top = 0;
  for (int i = 0; i < kLanes; i++) top = top > m[i] ? top : m[i];
  float f;
  memcpy(&f, &top, 4);
  return f;
}

template <int N, int GROUP>
MP_INLINE void quantize_row(const float* x, int8_t* q, float* scales, float* sums) {
  constexpr int64_t kPadded = packed_columns(N, GROUP), kWidth = GROUP ? GROUP : kPadded;
  for (int64_t g = 0; g < kPadded / kWidth; g++) {
    const int64_t begin = g * kWidth, end = min_of(begin + kWidth, N);
    // Magnitudes are compared as integers, where NaN is the largest: a row with a NaN gets a NaN scale, and so NaN results.
    i32x16 m = splat(0);
    for (int64_t i = begin; i < end; i += kLanes) {
      const i32x16 v = (i32x16)vabs(load_n(x + i, end - i));
      m = m > v ? m : v;
    }
    const float largest = magnitude_max(m);
    const float scale = largest == 0.0f ? 1.0f : largest / 127.0f;
    const f32x16 s = splat(scale), top = splat(127.0f);
    i32x16 total = splat(0);
    for (int64_t i = begin; i < begin + kWidth; i += kLanes) {
      const f32x16 v = i < end ? load_n(x + i, end - i) : splat(0.0f);
      const i32x16 n = to_int(round_even(vmin(vmax(v / s, -top), top)));
      total += n;
      store_as(q + i, __builtin_convertvector(n, i8x16));
    }
    scales[g] = scale;
    sums[g] = scale * (float)sum(total);
  }
}

template <int N, int GROUP>
MP_TASK void quantize_act(const QuantizeArgs& a, int tid, int nt) {
  const Range rows = share(a.m, tid, nt);
  for (int64_t r = rows.begin; r < rows.end; r++) {
    quantize_row<N, GROUP>(a.x + r * a.ldx, a.q + r * a.ldq, a.scales + r * a.ldg, a.sums + r * a.ldg);
  }
}

template <int N, int GROUP>
MP_TASK void rms_norm_quant(const QuantizeArgs& a, int tid, int nt) {
  const Range rows = share(a.m, tid, nt);
  alignas(64) float y[N];
  for (int64_t r = rows.begin; r < rows.end; r++) {
    rms_norm_row<N>(a.x + r * a.ldx, a.weight, a.eps, y);
    quantize_row<N, GROUP>(y, a.q + r * a.ldq, a.scales + r * a.ldg, a.sums + r * a.ldg);
  }
}

template <int N, int GROUP>
MP_TASK void layer_norm_quant(const QuantizeArgs& a, int tid, int nt) {
  const Range rows = share(a.m, tid, nt);
  alignas(64) float y[N];
  for (int64_t r = rows.begin; r < rows.end; r++) {
    layer_norm_row<N>(a.x + r * a.ldx, a.weight, a.bias, a.eps, y);
    quantize_row<N, GROUP>(y, a.q + r * a.ldq, a.scales + r * a.ldg, a.sums + r * a.ldg);
  }
}

}  // namespace mp
