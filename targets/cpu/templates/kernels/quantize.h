// Activations to int8, alone or straight from a norm: per group q = round(x / s), s = absmax / 127, and s * sum(q).
#pragma once
#include "float8.h"
#include "norm.h"

namespace mp {

// Lane g of the result is all of vector g's lanes folded by OP. Vector g stands at v[fold_slot(g)].
constexpr int fold_slot(int g) { return (g & 1) << 3 | (g & 2) << 1 | (g & 4) >> 1 | (g & 8) >> 3; }
template <class OP>
MP_INLINE i32x16 fold_lanes(const i32x16* v, OP op) {
  i32x16 w[8], x[4], y[2];
  MP_UNROLL
  for (int i = 0; i < 8; i++) {
    const i32x16 a = v[i], b = v[i + 8];
    w[i] = op(__builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23),
              __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31));
  }
  MP_UNROLL
  for (int i = 0; i < 4; i++) {
    const i32x16 a = w[i], b = w[i + 4];
    x[i] = op(__builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27),
              __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31));
  }
  MP_UNROLL
  for (int i = 0; i < 2; i++) {
    const i32x16 a = x[i], b = x[i + 2];
    y[i] = op(__builtin_shufflevector(a, b, 0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29),
              __builtin_shufflevector(a, b, 2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23, 26, 27, 30, 31));
  }
  return op(__builtin_shufflevector(y[0], y[1], 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30),
            __builtin_shufflevector(y[0], y[1], 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31));
}
struct Larger {
  __attribute__((always_inline)) i32x16 operator()(i32x16 a, i32x16 b) const { return a > b ? a : b; }
};
struct Plus {
  __attribute__((always_inline)) i32x16 operator()(i32x16 a, i32x16 b) const { return a + b; }
};

// All groups' magnitudes first, then their scales 16 at a time, then the values: no step waits for a single division. Magnitudes are compared
// as integers, where NaN is the largest: a row with a NaN gets a NaN scale, and NaN results.
template <int N, int GROUP, class Ahead>
MP_INLINE void quantize_row(const float* x, int8_t* q, float* scales, float* sums, Ahead& ahead) {
  constexpr int64_t kPadded = packed_columns(N, GROUP), kWidth = GROUP ? GROUP : kPadded, kGroups = kPadded / kWidth;
  alignas(64) float scale[round_up(kGroups, kLanes)], inverse[round_up(kGroups, kLanes)];
  alignas(64) i32x16 part[kLanes] = {};
  for (int64_t g = 0; g < kGroups; g += kLanes) {
    for (int64_t i = 0, count = min_of(kLanes, kGroups - g); i < count; i++) {
      const int64_t begin = (g + i) * kWidth, end = min_of(begin + kWidth, N);
      i32x16 m = splat(0);
      for (int64_t j = begin; j < end; j += kLanes) {
        const i32x16 v = (i32x16)vabs(load_n(x + j, end - j));
        Ahead::step(ahead);
        m = m > v ? m : v;
      }
      part[fold_slot((int)i)] = m;
    }
    const f32x16 largest = (f32x16)fold_lanes(part, Larger()), one = splat(1.0f);
    const f32x16 s = select(largest < splat(kLeastMagnitude), one, largest / splat(127.0f));
    store(scale + g, s);
    store(inverse + g, one / s);
  }
  for (int64_t g = 0; g < kGroups; g += kLanes) {
    const int64_t count = min_of(kLanes, kGroups - g);
    for (int64_t i = 0; i < count; i++) {
      const int64_t begin = (g + i) * kWidth, end = min_of(begin + kWidth, N);
      const f32x16 by = splat(inverse[g + i]);
      i32x16 t = splat(0);
      for (int64_t j = begin; j < begin + kWidth; j += kLanes) {
        const f32x16 v = j < end ? load_n(x + j, end - j) : splat(0.0f);
        const i32x16 n = round_to_int(v * by);  // two roundings don't carry the largest past 127.5
        Ahead::step(ahead);
        t += n;
        store_as(q + j, __builtin_convertvector(n, i8x16));
      }
      part[fold_slot((int)i)] = t;
    }
    const f32x16 s = load(scale + g);
    store_n(scales + g, s, count);
    store_n(sums + g, s * to_float(fold_lanes(part, Plus())), count);
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
