// The arithmetic of many queries: a block of 16 rows against a few pages whose keys and values lie ready in f32, or as pairs of bf16.
#pragma once
#include "amx.h"
#include "attention_plan.h"

namespace mp {

// Register tiles of the products without AMX: rows, and vectors of keys or dims.
#if defined(__AVX512F__)
constexpr int kProductRows = 8, kProductVectors = 2;
#elif defined(__AVX2__) || defined(__aarch64__)
constexpr int kProductRows = 4, kProductVectors = 1;
#else
constexpr int kProductRows = 2, kProductVectors = 1;
#endif

// c += a * b, where b is one 4-byte step of a row in every lane: an f32, or a pair of bf16.
template <bool PAIRS>
MP_INLINE f32x16 multiply_add(f32x16 c, f32x16 a, f32x16 b) {
#if defined(__AVX512BF16__)
  if constexpr (PAIRS) return (f32x16)_mm512_dpbf16_ps((__m512)c, (__m512bh)a, (__m512bh)b);
#endif
  return c + a * b;
}

// c[MT][16*NT] (ldc) = or += a[MT][steps] (lda) times b[steps][16*NT] (ldb), in 4-byte steps.
template <bool PAIRS, bool ADD, int MT, int NT>
MP_KERNEL void product_tile(const float* a, int64_t lda, const float* b, int64_t ldb, int64_t steps, float* c, int64_t ldc) {
  f32x16 acc[MT][NT];
  MP_UNROLL
  for (int r = 0; r < MT; r++) {
    MP_UNROLL
    for (int j = 0; j < NT; j++) acc[r][j] = ADD ? load(c + r * ldc + j * kLanes) : splat(0.0f);
  }
#pragma clang loop unroll_count(2)
  for (int64_t i = 0; i < steps; i++) {
    f32x16 v[NT];
    MP_UNROLL
    for (int j = 0; j < NT; j++) v[j] = load(b + i * ldb + j * kLanes);
    MP_UNROLL
    for (int r = 0; r < MT; r++) {
      const f32x16 x = splat(a[r * lda + i]);
      MP_UNROLL
      for (int j = 0; j < NT; j++) acc[r][j] = multiply_add<PAIRS>(acc[r][j], v[j], x);
    }
  }
  MP_UNROLL
  for (int r = 0; r < MT; r++) {
    MP_UNROLL
    for (int j = 0; j < NT; j++) store(c + r * ldc + j * kLanes, acc[r][j]);
  }
}
// The same for any number of rows (up to the next multiple of kProductRows of them are computed) and N columns.
template <bool PAIRS, bool ADD, int N>
MP_INLINE void product_rows(const float* a, int64_t lda, const float* b, int64_t ldb, int64_t steps, float* c, int64_t ldc, int64_t rows) {
  for (int64_t r = 0; r < rows; r += kProductRows) {
    int64_t n = 0;
    for (; n + kProductVectors * kLanes <= N; n += kProductVectors * kLanes) {
      product_tile<PAIRS, ADD, kProductRows, kProductVectors>(a + r * lda, lda, b + n, ldb, steps, c + r * ldc + n, ldc);
    }
    if (n < N) product_tile<PAIRS, ADD, kProductRows, 1>(a + r * lda, lda, b + n, ldb, steps, c + r * ldc + n, ldc);
  }
}

#if defined(__AVX512BF16__)
// Two vectors' lanes as pairs of bf16: the first in the lower halves.
MP_INLINE f32x16 pack_lanes(f32x16 low, f32x16 high) {
  const __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);  // 16 of low, then 16 of high
  const i32x16 at = lane_numbers() | ((lane_numbers() + 16) << 16);
  return (f32x16)_mm512_permutexvar_epi16((__m512i)at, both);
}
// 32 numbers that follow one another as 16 pairs.
MP_INLINE f32x16 pack_neighbours(f32x16 first, f32x16 second) { return (f32x16)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first); }
#endif

// A query, scaled; rounded to int8 where scores are asked for in that.
template <class A>
MP_INLINE void load_rounded(const AttentionArgs& a, int64_t token, int64_t head, float* q) {
  if constexpr (A::kScores == Scores::F32) return load_query<A>(a, token, head, q);
  load_head<A>(a, a.q + token * a.ldq + head * a.ldq_head, token, 1.0f, q);
  f32x16 most = splat(0.0f);
  for (int64_t d = 0; d < A::kDkp; d += kLanes) most = vmax(most, vabs(load(q + d)));
  const float largest = max_lane(most), inverse = largest > 1e-30f ? 127.0f / largest : 0.0f;
  const f32x16 scale = splat(largest / 127.0f * a.scale * kLog2e);
  for (int64_t d = 0; d < A::kDkp; d += kLanes) store(q + d, round_even(load(q + d) * splat(inverse)) * scale);
}

// A query of one head, scaled, as steps.
template <class A>
MP_INLINE void query_steps(const AttentionArgs& a, int64_t token, int64_t head, float* to) {
  using T = TileShape<A>;
  if constexpr (!T::kPairs) {
    alignas(64) float q[A::kDkp];
    load_rounded<A>(a, token, head, q);
    memcpy(to, q, T::kQuery * sizeof(float) < sizeof(q) ? T::kQuery * sizeof(float) : sizeof(q));
  } else {
#if defined(__AVX512BF16__)
    alignas(64) float q[T::kSteps * 2] = {};
    load_rounded<A>(a, token, head, q);
    for (int64_t d = 0; d < T::kSteps * 2; d += 32) store(to + d / 2, pack_neighbours(load(q + d), load(q + d + kLanes)));
#endif
  }
}

// A page's keys of one head as steps: [kSteps][32].
template <class A>
MP_KERNEL void key_steps(const typename A::E* keys, float* to) {
  using T = TileShape<A>;
  if constexpr (A::kCodes) {
    widen_keys<A>(keys, [&](int64_t d, int64_t half, f32x16 first, f32x16 second) __attribute__((always_inline)) {
      if constexpr (T::kPairs) {
#if defined(__AVX512BF16__)
        store(to + d / 2 * kPage + half * kLanes, pack_lanes(first, second));
#endif
      } else {
        if (d < A::kDk) store(to + d * kPage + half * kLanes, first);
        if (d + 1 < A::kDk) store(to + (d + 1) * kPage + half * kLanes, second);
      }
    });
    // Dims beyond meet queries that are 0 there, and must be numbers.
    constexpr int64_t kWritten = A::kKeySteps * (A::kKeyBits == 4 ? 4 : 2) * kPage;
    if constexpr (T::kPairs && kWritten < T::kKeyFloats) memset(to + kWritten, 0, (T::kKeyFloats - kWritten) * sizeof(float));
  } else if constexpr (!T::kPairs) {
    for (int64_t i = 0; i < A::kDk * kPage; i += kLanes) store(to + i, load_kv(keys + i));
  } else {
#if defined(__AVX512BF16__)
    for (int64_t d = 0; d < T::kSteps * 2; d += 2) {
      for (int64_t j = 0; j < kPage; j += kLanes) {
        const f32x16 low = d < A::kDk ? load_kv(keys + d * kPage + j) : splat(0.0f);
        const f32x16 high = d + 1 < A::kDk ? load_kv(keys + (d + 1) * kPage + j) : splat(0.0f);
        store(to + d / 2 * kPage + j, pack_lanes(low, high));
      }
    }
#endif
  }
}

// A page's values of one head as steps: [kTokenSteps][kDvp]. Tokens from `tokens` on, which hold what another sequence left there, become 0.
template <class A>
MP_KERNEL void value_steps(const typename A::E* values, int64_t tokens, float* to) {
  using T = TileShape<A>;
  [[maybe_unused]] const f32x16 zero = splat(0.0f);
  if constexpr (A::kCodes) {
    widen_values<A>(values, tokens, [&](int64_t t, int64_t d, f32x16 first, f32x16 second) __attribute__((always_inline)) {
      if constexpr (T::kPairs) {
#if defined(__AVX512BF16__)
        store(to + t / 2 * A::kDvp + d, pack_lanes(first, second));
#endif
      } else {
        store(to + t * A::kDvp + d, first);
        store(to + (t + 1) * A::kDvp + d, second);
      }
    });
    const int64_t written = (T::kPairs ? (tokens + 1) / 2 : (tokens + 1) / 2 * 2) * A::kDvp;
    memset(to + written, 0, (T::kValueFloats - written) * sizeof(float));
  } else if constexpr (!T::kPairs) {
    for (int64_t i = 0; i < kPage * A::kDvp; i += kLanes) store(to + i, i < tokens * A::kDvp ? load_kv(values + i) : zero);
  } else {
#if defined(__AVX512BF16__)
    for (int64_t t = 0; t < kPage; t += 2) {
      for (int64_t d = 0; d < A::kDvp; d += kLanes) {
        const f32x16 low = t < tokens ? load_kv(values + t * A::kDvp + d) : zero, high = t + 1 < tokens ? load_kv(values + (t + 1) * A::kDvp + d) : zero;
        store(to + t / 2 * A::kDvp + d, pack_lanes(low, high));
      }
    }
#endif
  }
}

#if defined(MP_AMX)
// c[16][64] (ld `ldc`) = 16 rows of queries times the keys of two pages.
template <class A>
MP_INLINE void amx_scores(const float* q, const float* keys0, const float* keys1, float* c, int64_t ldc) {
  using T = TileShape<A>;
  constexpr int kRow = kPage * 4;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t i = 0; i < T::kSteps; i += kTileSide) {
    const float *k0 = keys0 + i * kPage, *k1 = keys1 + i * kPage;
    _tile_loadd(4, q + i, T::kQuery * 4);
    _tile_loadd(5, k0, kRow);
    _tile_loadd(6, k0 + kLanes, kRow);
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(7, k1, kRow);
    _tile_dpbf16ps(1, 4, 6);
    _tile_loadd(5, k1 + kLanes, kRow);
    _tile_dpbf16ps(2, 4, 7);
    _tile_dpbf16ps(3, 4, 5);
  }
  _tile_stored(0, c, ldc * 4);
  _tile_stored(1, c + kLanes, ldc * 4);
  _tile_stored(2, c + 2 * kLanes, ldc * 4);
  _tile_stored(3, c + 3 * kLanes, ldc * 4);
}
// o[16][16*ND] += 16 rows of weights (a page's are 16 pairs) times the values of pages.
template <class A, int ND>
MP_INLINE void amx_values(const float* p, int64_t ldp, const float* const* values, int64_t pages, int64_t d, float* o) {
  constexpr int kRow = A::kDvp * 4;
  _tile_loadd(0, o + d, kRow);
  if constexpr (ND > 1) _tile_loadd(1, o + d + kLanes, kRow);
  if constexpr (ND > 2) _tile_loadd(2, o + d + 2 * kLanes, kRow);
  if constexpr (ND > 3) _tile_loadd(3, o + d + 3 * kLanes, kRow);
  for (int64_t i = 0; i < pages; i++) {
    const float* v = values[i] + d;
    _tile_loadd(4, p + i * kLanes, ldp * 4);
    _tile_loadd(5, v, kRow);
    _tile_dpbf16ps(0, 4, 5);
    if constexpr (ND > 1) {
      _tile_loadd(6, v + kLanes, kRow);
      _tile_dpbf16ps(1, 4, 6);
    }
    if constexpr (ND > 2) {
      _tile_loadd(7, v + 2 * kLanes, kRow);
      _tile_dpbf16ps(2, 4, 7);
    }
    if constexpr (ND > 3) {
      _tile_loadd(5, v + 3 * kLanes, kRow);
      _tile_dpbf16ps(3, 4, 5);
    }
  }
  _tile_stored(0, o + d, kRow);
  if constexpr (ND > 1) _tile_stored(1, o + d + kLanes, kRow);
  if constexpr (ND > 2) _tile_stored(2, o + d + 2 * kLanes, kRow);
  if constexpr (ND > 3) _tile_stored(3, o + d + 3 * kLanes, kRow);
}
#endif

// s[rows][32*pages] (ld kKeys) = a row block's queries times the keys of pages.
template <class A>
MP_KERNEL void block_scores(const float* q, const float* const* keys, int64_t pages, float* s, [[maybe_unused]] int64_t rows) {
  using T = TileShape<A>;
#if defined(MP_AMX)
  if constexpr (T::kPairs) {
    for (int64_t i = 0; i < pages; i += 2) amx_scores<A>(q, keys[i], keys[i + 1 < pages ? i + 1 : i], s + i * kPage, T::kKeys);
    return;
  }
#endif
  for (int64_t i = 0; i < pages; i++) product_rows<T::kPairs, false, kPage>(q, T::kQuery, keys[i], kPage, T::kSteps, s + i * kPage, T::kKeys, rows);
}
// o[rows][kDvp] += weights (ld kWeights) times the values of pages, `steps` of each.
template <class A>
MP_KERNEL void block_values(const float* p, const float* const* values, [[maybe_unused]] const int64_t* steps, int64_t pages, float* o,
                            [[maybe_unused]] int64_t rows) {
  using T = TileShape<A>;
#if defined(MP_AMX)
  if constexpr (T::kPairs) {
    int64_t d = 0;
    for (; d + 4 * kLanes <= A::kDvp; d += 4 * kLanes) amx_values<A, 4>(p, T::kWeights, values, pages, d, o);
    if constexpr (A::kDvp / kLanes % 4) amx_values<A, A::kDvp / kLanes % 4>(p, T::kWeights, values, pages, d, o);
    return;
  }
#endif
  if constexpr (T::kConverts) {  // these pages lie one after the other, and all but the last are full
    const int64_t all = (pages - 1) * T::kTokenSteps + steps[pages - 1];
    product_rows<T::kPairs, true, A::kDvp>(p, T::kWeights, values[0], A::kDvp, all, o, A::kDvp, rows);
  } else {
    for (int64_t i = 0; i < pages; i++) {
      product_rows<T::kPairs, true, A::kDvp>(p + i * T::kTokenSteps, T::kWeights, values[i], A::kDvp, steps[i], o, A::kDvp, rows);
    }
  }
}

}  // namespace mp
