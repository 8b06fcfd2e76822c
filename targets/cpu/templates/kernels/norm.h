// rms_norm and layer_norm over the last dimension. Rows are shared out to the threads.
#pragma once
#include "ahead.h"
#include "args.h"
#include "vec.h"

namespace mp {

// y = x / sqrt(mean(x^2) + eps) * weight. Two partial sums, in the same order whatever calls it.
template <int N, class Ahead>
MP_INLINE void rms_norm_row(const float* x, const float* weight, float eps, float* y, Ahead& ahead) {
  f32x16 s0 = splat(0.0f), s1 = splat(0.0f);
  int64_t i = 0;
  for (; i + 2 * kLanes <= N; i += 2 * kLanes) {
    const f32x16 a = load(x + i), b = load(x + i + kLanes);
    Ahead::step(ahead);
    Ahead::step(ahead);
    s0 += a * a;
    s1 += b * b;
  }
  for (; i < N; i += kLanes) {
    const f32x16 a = load_n(x + i, N - i);
    s0 += a * a;
  }
  const float scale = 1.0f / sqrtf(sum(s0 + s1) / (float)N + eps);
  for (i = 0; i < N; i += kLanes) {
    f32x16 v = load_n(x + i, N - i) * splat(scale);
    Ahead::step(ahead);
    if (weight) v *= load_n(weight + i, N - i);
    store_n(y + i, v, N - i);
  }
}
template <int N>
MP_INLINE void rms_norm_row(const float* x, const float* weight, float eps, float* y) {
  NoAhead none;
  rms_norm_row<N>(x, weight, eps, y, none);
}

// y = (x - mean) / sqrt(variance + eps) * weight + bias, with the variance taken around the mean (no cancellation).
template <int N>
MP_INLINE void layer_norm_row(const float* x, const float* weight, const float* bias, float eps, float* y) {
  f32x16 s = splat(0.0f);
  for (int64_t i = 0; i < N; i += kLanes) s += load_n(x + i, N - i);
  const f32x16 mean = splat(sum(s) / (float)N);
  f32x16 q = splat(0.0f);
  for (int64_t i = 0; i < N; i += kLanes) {
    f32x16 d = load_n(x + i, N - i) - mean;
    if (N - i < kLanes) d = select(lane_numbers() < splat((int32_t)(N - i)), d, splat(0.0f));
    q += d * d;
  }
  const f32x16 scale = splat(1.0f / sqrtf(sum(q) / (float)N + eps));
  for (int64_t i = 0; i < N; i += kLanes) {
    f32x16 v = (load_n(x + i, N - i) - mean) * scale;
    if (weight) v *= load_n(weight + i, N - i);
    if (bias) v += load_n(bias + i, N - i);
    store_n(y + i, v, N - i);
  }
}

template <int N>
MP_TASK void rms_norm(const NormArgs& a, int tid, int nt) {
  const Range rows = share(a.outer * a.inner, tid, nt);
  for (int64_t r = rows.begin; r < rows.end; r++) {
    const int64_t o = r / a.inner, i = r % a.inner;
    rms_norm_row<N>(a.x + o * a.ldx + i * a.ldx_inner, a.weight, a.eps, a.y + o * a.ldy + i * a.ldy_inner);
  }
}

template <int N>
MP_TASK void layer_norm(const NormArgs& a, int tid, int nt) {
  const Range rows = share(a.outer * a.inner, tid, nt);
  for (int64_t r = rows.begin; r < rows.end; r++) {
    const int64_t o = r / a.inner, i = r % a.inner;
    layer_norm_row<N>(a.x + o * a.ldx + i * a.ldx_inner, a.weight, a.bias, a.eps, a.y + o * a.ldy + i * a.ldy_inner);
  }
}

}  // namespace mp
