// Activations to int8, alone or straight from a norm: per group q = round(x / s), s = absmax / 127, and s * sum(q).
#pragma once
#include "norm.h"

namespace mp {

// The largest of 16 magnitudes. They are compared as integers, where NaN is the largest: a row with a NaN gets a NaN scale, and NaN results.
MP_INLINE float magnitude_max(i32x16 m) {
  typedef int32_t i32x8 __attribute__((vector_size(32)));
  typedef int32_t i32x4 __attribute__((vector_size(16)));
  i32x8 lo = __builtin_shufflevector(m, m, 0, 1, 2, 3, 4, 5, 6, 7), hi = __builtin_shufflevector(m, m, 8, 9, 10, 11, 12, 13, 14, 15);
  i32x8 a = lo > hi ? lo : hi;
  i32x4 l4 = __builtin_shufflevector(a, a, 0, 1, 2, 3), h4 = __builtin_shufflevector(a, a, 4, 5, 6, 7);
  i32x4 b = l4 > h4 ? l4 : h4, c = __builtin_shufflevector(b, b, 2, 3, 0, 1);
  b = b > c ? b : c;
  c = __builtin_shufflevector(b, b, 1, 0, 3, 2);
  b = b > c ? b : c;
  float f;
  memcpy(&f, &b, 4);
  return f;
}

// Groups of which only zeros are kept: below 2^-100 the reciprocal of the scale nears the end of f32's range.
constexpr float kLeastMagnitude = 7.888609052210118e-31f;

// All groups' magnitudes first, then their scales 16 at a time, then the values: no step waits for a single division.
template <int N, int GROUP, class Ahead>
MP_INLINE void quantize_row(const float* x, int8_t* q, float* scales, float* sums, Ahead& ahead) {
  constexpr int64_t kPadded = packed_columns(N, GROUP), kWidth = GROUP ? GROUP : kPadded, kGroups = kPadded / kWidth;
  alignas(64) float scale[round_up(kGroups, kLanes)] = {}, inverse[round_up(kGroups, kLanes)];
  alignas(64) int32_t total[round_up(kGroups, kLanes)] = {};
  for (int64_t g = 0; g < kGroups; g++) {
    const int64_t begin = g * kWidth, end = min_of(begin + kWidth, N);
    i32x16 m = splat(0);
    for (int64_t i = begin; i < end; i += kLanes) {
      const i32x16 v = (i32x16)vabs(load_n(x + i, end - i));
      Ahead::step(ahead);
      m = m > v ? m : v;
    }
    scale[g] = magnitude_max(m);
  }
  for (int64_t g = 0; g < kGroups; g += kLanes) {
    const f32x16 largest = load(scale + g), one = splat(1.0f);
    const f32x16 s = select(largest < splat(kLeastMagnitude), one, largest / splat(127.0f));
    store(scale + g, s);
    store(inverse + g, one / s);
  }
  const f32x16 top = splat(127.0f);
  for (int64_t g = 0; g < kGroups; g++) {
    const int64_t begin = g * kWidth, end = min_of(begin + kWidth, N);
    const f32x16 by = splat(inverse[g]);
    i32x16 t = splat(0);
    for (int64_t i = begin; i < begin + kWidth; i += kLanes) {
      const f32x16 v = i < end ? load_n(x + i, end - i) : splat(0.0f);
      const i32x16 n = to_int(round_even(vmin(vmax(v * by, -top), top)));
      Ahead::step(ahead);
      t += n;
      store_as(q + i, __builtin_convertvector(n, i8x16));
    }
    total[g] = sum(t);
  }
  for (int64_t g = 0; g < kGroups; g += kLanes) {
    const f32x16 s = load(scale + g);
    store_n(scales + g, s, kGroups - g);
    store_n(sums + g, s * to_float(load_as<i32x16>(total + g)), kGroups - g);
  }
}
template <int N, int GROUP>
MP_INLINE void quantize_row(const float* x, int8_t* q, float* scales, float* sums) {
  NoAhead none;
  quantize_row<N, GROUP>(x, q, scales, sums, none);
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
